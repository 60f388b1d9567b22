package node_test

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillon-scheduler/carillon/internal/userns"
)

// host is a network namespace with an address of its own. Whatever runs there reaches the others through a switch in
// this process, packet by packet, and the test says what becomes of each: it is passed on at once, later, or not.
//
// The kernel's netem (tc) does the same, but few kernels that containers run on have it, while most have TUN devices. TCP
// cannot tell the difference: it sends lost packets again, after the same waits as on a real network.
type host struct {
	ip    string
	space int // a descriptor of the namespace, which ends when nothing uses it any more
	tun   *os.File

	mu      sync.Mutex
	out, in link
	severed map[*host]bool // nothing passes between it and these
}

// link is what happens to packets that leave a host, or arrive there.
type link struct {
	cut           bool
	delay, jitter time.Duration
	loss          float64 // 0 to 1
}

// crossing is how many packets may be on their way from one host to another. More are lost, as in a real queue.
const crossing = 4096

// startHosts makes n hosts that reach each other. If that is not allowed, it runs the test again as root of a user
// namespace, in another process. Then ok is false, and the caller has nothing left to do.
func startHosts(t *testing.T, n int) (hosts []*host, ok bool) {
	t.Helper()
	for i := range n {
		h, err := newHost(byte(i + 1))
		if userns.Rerun(t, err) {
			return nil, false
		}
		if err != nil {
			t.Skipf("NOT TESTED: hosts of their own cannot be made here: %v", err)
		}
		t.Cleanup(func() {
			h.tun.Close()
			unix.Close(h.space)
		})
		hosts = append(hosts, h)
	}
	for _, h := range hosts {
		var to []chan packet
		for _, other := range hosts {
			q := make(chan packet, crossing)
			to = append(to, q)
			go other.receive(q)
		}
		go h.send(hosts, to)
	}
	return hosts, true
}

func newHost(number byte) (h *host, err error) {
	h = &host{ip: net.IPv4(10, 77, 0, number).String(), severed: make(map[*host]bool)}
	err = inNamespace(func() error { return unix.Unshare(unix.CLONE_NEWNET) }, func() error {
		if h.space, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return os.NewSyscallError("open namespace", err)
		}
		// Before each try to send again TCP waits twice as long, and so it waits even when the network is well again. Newer
		// kernels can bound that wait; older ones remain slow.
		_ = os.WriteFile("/proc/sys/net/ipv4/tcp_rto_max_ms", []byte("1000"), 0o644)
		h.tun, err = openTUN([4]byte{10, 77, 0, number})
		return err
	})
	return h, err
}

// inNamespace calls do on a thread that enter has moved into another namespace, and moves the thread back.
func inNamespace(enter, do func() error) error {
	runtime.LockOSThread()
	home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		runtime.UnlockOSThread()
		return os.NewSyscallError("open namespace", err)
	}
	defer unix.Close(home)
	if err := enter(); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	err = do()
	if back := unix.Setns(home, unix.CLONE_NEWNET); back != nil {
		return back // the thread stays locked, and ends with the goroutine
	}
	runtime.UnlockOSThread()
	return err
}

// openTUN makes the only device of the namespace that this thread is in, with an address in a network of 254 hosts.
func openTUN(address [4]byte) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/dev/net/tun", Err: err}
	}
	f := func() error {
		device, err := unix.NewIfreq("tun0")
		if err != nil {
			return err
		}
		device.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, device); err != nil {
			return os.NewSyscallError("TUNSETIFF", err)
		}
		s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		defer unix.Close(s)
		up := func(name string) error {
			r, err := unix.NewIfreq(name)
			if err != nil {
				return err
			}
			r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
			return os.NewSyscallError("up "+name, unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, r))
		}
		if err := device.SetInet4Addr(address[:]); err != nil {
			return err
		}
		if err := unix.IoctlIfreq(s, unix.SIOCSIFADDR, device); err != nil {
			return os.NewSyscallError("SIOCSIFADDR", err)
		}
		if err := device.SetInet4Addr([]byte{255, 255, 255, 0}); err != nil {
			return err
		}
		if err := unix.IoctlIfreq(s, unix.SIOCSIFNETMASK, device); err != nil {
			return os.NewSyscallError("SIOCSIFNETMASK", err)
		}
		return errors.Join(up("lo"), up("tun0"))
	}
	if err := f(); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "tun0"), nil
}

// do calls f on the host. Processes and connections that f starts stay on the host.
func (h *host) do(f func() error) error {
	return inNamespace(func() error { return os.NewSyscallError("setns", unix.Setns(h.space, unix.CLONE_NEWNET)) }, f)
}

// start starts a process on the host. A nil host is this machine.
func (h *host) start(cmd *exec.Cmd) error {
	if h == nil {
		return cmd.Start()
	}
	return h.do(cmd.Start)
}

// Dial connects from the host.
func (h *host) Dial(network, address string) (c net.Conn, err error) {
	err = h.do(func() error {
		c, err = net.DialTimeout(network, address, time.Second)
		return err
	})
	if tcp, ok := c.(*net.TCPConn); ok {
		err = tcp.SetLinger(0) // what a connection that is given up has not sent never arrives
	}
	return c, err
}

// connections returns the host's connections, and whether each has sent all that it had, and has read all that came.
func (h *host) connections() (idle map[string]bool, err error) {
	idle = make(map[string]bool)
	err = h.do(func() error {
		connections, err := os.ReadFile("/proc/thread-self/net/tcp")
		for line := range strings.Lines(string(connections)) {
			const local, remote, state, queues, established = 1, 2, 3, 4, "01"
			if f := strings.Fields(line); len(f) > queues && f[state] == established {
				idle[f[local]+" "+f[remote]] = f[queues] == "00000000:00000000"
			}
		}
		return err
	})
	return idle, err
}

// packet is a packet that was sent, and when it arrives.
type packet struct {
	due  time.Time
	data []byte
}

// send puts the packets that the host sends on their way, until the device is closed.
func (h *host) send(hosts []*host, to []chan packet) {
	buffer := make([]byte, 1<<16)
	for {
		n, err := h.tun.Read(buffer)
		if err != nil {
			for _, q := range to {
				close(q)
			}
			return
		}
		if n < 20 || buffer[0]>>4 != 4 { // nothing but IPv4
			continue
		}
		number := int(binary.BigEndian.Uint32(buffer[16:20]) & 0xff)
		if number < 1 || number > len(hosts) {
			continue
		}
		due, lost := h.cross(hosts[number-1])
		if lost {
			continue
		}
		select {
		case to[number-1] <- packet{due, append([]byte(nil), buffer[:n]...)}:
		default:
		}
	}
}

// cross says what becomes of a packet to another host.
func (h *host) cross(to *host) (due time.Time, lost bool) {
	h.mu.Lock()
	out, lost := h.out, h.severed[to]
	h.mu.Unlock()
	to.mu.Lock()
	in := to.in
	lost = lost || to.severed[h]
	to.mu.Unlock()
	if lost || out.cut || in.cut || rand.Float64() < out.loss || rand.Float64() < in.loss {
		return time.Time{}, true
	}
	if wait := out.wait() + in.wait(); wait > 0 {
		due = time.Now().Add(wait)
	}
	return due, false
}

func (r link) wait() time.Duration {
	if r.jitter == 0 {
		return r.delay
	}
	return max(0, r.delay-r.jitter+rand.N(2*r.jitter))
}

// receive delivers packets when they arrive. None overtakes another: a late one holds up those behind it.
func (h *host) receive(q <-chan packet) {
	for p := range q {
		if !p.due.IsZero() {
			time.Sleep(time.Until(p.due))
		}
		_, _ = h.tun.Write(p.data) // one that cannot be written is lost
	}
}

// cut loses all that the host sends, or all that is sent to it.
func (h *host) cut(out, in bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.out.cut, h.in.cut = out, in
}

// sever loses all between the host and others.
func (h *host) sever(others ...*host) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, other := range others {
		h.severed[other] = true
	}
}

// slow makes the host's network a bad one, in both directions: a packet takes the delay, give or take the jitter, and
// is lost with a chance of loss.
func (h *host) slow(delay, jitter time.Duration, loss float64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.out, h.in = link{delay: delay, jitter: jitter, loss: loss}, link{delay: delay, jitter: jitter, loss: loss}
}

// heal ends what cut, sever and slow began.
func (h *host) heal() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.out, h.in = link{}, link{}
	clear(h.severed)
}
