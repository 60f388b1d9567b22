package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrVersion marks what another version of Carillon has written and this one cannot read, although it is not damaged: a newer format, or
// the schedule of a job whose zone its tzdata does not have.
var ErrVersion = errors.New("engine: written by another version, use that one")

var (
	errShort = errors.New("it ends too early")
	errValue = errors.New("a value is out of range")
)

// decoder reads the varint formats of this package. Its first error stays, and every later read
// returns zero, so that a decoding function needs to check only once.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
	d.b = nil
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.fail(errShort)
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

// version reads a version byte, and fails if it is not from 1 to newest, which this binary reads.
func (d *decoder) version(of string, newest byte) byte {
	v := d.byte()
	switch {
	case d.err != nil:
	case v > newest:
		d.fail(fmt.Errorf("%w: %s of version %d, this binary reads %d", ErrVersion, of, v, newest))
	case v == 0:
		d.fail(fmt.Errorf("%s of version 0", of))
	}
	return v
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail(errShort)
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail(errShort)
		return 0
	}
	d.b = d.b[n:]
	return v
}

// bytes returns a length-prefixed run of bytes that aliases the input.
func (d *decoder) bytes() []byte {
	n := d.uvarint()
	if n > uint64(len(d.b)) {
		d.fail(errShort)
		return nil
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) string() string { return string(d.bytes()) }

func appendString[T ~string | ~[]byte](dst []byte, s T) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}
