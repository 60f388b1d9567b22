package engine

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/schedule"
)

// The table gives the same answers as a map of the same jobs, whatever was freed and used again meanwhile.
func TestJobTableIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type content struct {
			fixed   fixed
			request string
			spec    []byte
			extra   extra
			expr    string
		}
		var table jobTable
		table.init()
		model := make(map[string]content)
		anyFixed := rapid.Custom(func(t *rapid.T) fixed {
			return fixed{
				version: rapid.Uint64().Draw(t, "version"), put: rapid.Uint64().Draw(t, "put"), index: rapid.Uint16().Draw(t, "index"),
				order: rapid.Uint64().Draw(t, "order"), accepted: rapid.Int64().Draw(t, "accepted"),
			}
		})
		text := rapid.Custom(func(t *rapid.T) string {
			length := rapid.OneOf(rapid.IntRange(0, 40), rapid.IntRange(4000, 4200), rapid.IntRange(100_000, 130_000)).Draw(t, "length")
			return strings.Repeat(rapid.StringMatching("[a-z]").Draw(t, "letter"), length)
		})
		anyRequest := rapid.OneOf(text, rapid.Custom(func(t *rapid.T) string {
			client := rapid.SampledFrom([]string{"X5OODMZHH7DCJZUX-", "1234567-", "123456-", "-", ""}).Draw(t, "client")
			return client + rapid.StringMatching("-?[0-9a-z]{0,14}").Draw(t, "count")
		}))
		anySpec := rapid.Custom(func(t *rapid.T) []byte {
			if !rapid.Bool().Draw(t, "real") {
				return []byte(text.Draw(t, "junk"))
			}
			return encodeSpec(&carillon.Job{
				Topic:    rapid.SampledFrom([]string{"", "a", "a.b"}).Draw(t, "topic"),
				Owner:    rapid.SampledFrom([]string{"", "acme"}).Draw(t, "owner"),
				Payload:  []byte(text.Draw(t, "payload")),
				MaxFires: rapid.Uint64().Draw(t, "fires"),
				Start:    fromMilli(rapid.Int64Range(0, 1<<47).Draw(t, "start")),
			})
		})
		id := rapid.Custom(func(t *rapid.T) string { return fmt.Sprint("j", rapid.IntRange(0, 60).Draw(t, "n")) })
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				id := id.Draw(t, "id")
				c := content{request: anyRequest.Draw(t, "request"), spec: anySpec.Draw(t, "spec")}
				want := carillon.Job{Schedule: rapid.SampledFrom([]string{"", "@in 1s", "@every 1s", "@every 2s", "@hourly"}).Draw(t, "schedule")}
				want.MaxFires = rapid.Uint64Range(0, 1).Draw(t, "max")
				expr, err := table.exprs.parse(&want)
				if err != nil {
					t.Fatal(err)
				}
				plan := expr.Bind(1000, 0, 0, int64(want.MaxFires)*7)
				from, _, _ := plan.Fields()
				c.fixed = anyFixed.Draw(t, "fixed")
				_, j := table.find(id)
				if j == nil {
					_, j = table.add(id, c.fixed, from, c.request, c.spec)
				} else {
					table.clear(j)
					table.write(j, c.fixed, from, c.request, c.spec)
				}
				table.applySpec(j, &want, len(c.spec), expr, plan)
				c.expr, c.extra = want.Schedule, table.extra(j)
				if c.extra.maxFires != want.MaxFires {
					t.Fatalf("maxFires is %d, want %d", c.extra.maxFires, want.MaxFires)
				}
				model[id] = c
			},
			"extra": func(t *rapid.T) {
				id := id.Draw(t, "id")
				if _, j := table.find(id); j != nil {
					table.editExtra(j).skipped++
					c := model[id]
					c.extra.skipped++
					model[id] = c
				}
			},
			"remove": func(t *rapid.T) {
				id := id.Draw(t, "id")
				slot, j := table.find(id)
				if _, there := model[id]; there != (j != nil) {
					t.Fatalf("%s is there: %t, want %t", id, j != nil, there)
				}
				if j != nil {
					table.remove(slot)
				}
				delete(model, id)
			},
			"": func(t *rapid.T) {
				if n := table.byID.Len(); n != len(model) {
					t.Fatalf("%d jobs, want %d", n, len(model))
				}
				for id, want := range model {
					_, j := table.find(id)
					if j == nil {
						t.Fatalf("%s is not there", id)
					}
					if string(table.id(j)) != id || table.fixed(j) != want.fixed || string(table.request(j)) != want.request || !bytes.Equal(table.spec(j), want.spec) || table.extra(j) != want.extra {
						t.Fatalf("%s has other content", id)
					}
					expr, err := schedule.Parse(want.expr, "", 0, 0)
					if err != nil {
						t.Fatal(err)
					}
					if got, want := table.plan(j), expr.Bind(1000, 0, 0, int64(want.extra.maxFires)*7); !samePlan(got, want) {
						t.Fatalf("%s fires otherwise", id)
					}
				}
				var ids []string
				table.from("", func(_ uint32, j *job) bool { ids = append(ids, string(table.id(j))); return true })
				if want := slices.Sorted(maps.Keys(model)); !slices.Equal(ids, want) {
					t.Fatalf("in order: %q, want %q", ids, want)
				}
			},
		})
	})
}

func samePlan(a, b schedule.Plan) bool {
	for _, after := range []int64{-1, 0, 999, 1000, 2000, 5000, 1 << 40} {
		x, ok := a.Next(after)
		y, ok2 := b.Next(after)
		if x != y || ok != ok2 {
			return false
		}
	}
	return true
}

// Ids with the same hash are told apart, and any of them can be removed.
func TestJobTableCollisions(t *testing.T) {
	var table jobTable
	table.init()
	seen := make(map[uint32]string)
	var pair [2]string
	for i := 0; pair[0] == ""; i++ {
		id := fmt.Sprint("job-", i)
		h := hashOf(id)
		if other, ok := seen[h]; ok {
			pair = [2]string{other, id}
		}
		seen[h] = id
	}
	for _, first := range []int{0, 1} {
		for _, id := range pair {
			table.add(id, fixed{}, 0, "", nil)
		}
		for _, i := range []int{first, 1 - first} {
			slot, j := table.find(pair[i])
			if j == nil {
				t.Fatalf("%s is not there", pair[i])
			}
			table.remove(slot)
			if _, j := table.find(pair[i]); j != nil {
				t.Fatalf("%s is still there", pair[i])
			}
		}
	}
	if n := table.byHash.n; n != 0 {
		t.Errorf("%d hashes are left", n)
	}
}

// A table whose jobs come and go takes no more memory than one whose jobs stay.
func TestTextsAreUsedAgain(t *testing.T) {
	var table jobTable
	table.init()
	for i := range 200_000 {
		id := fmt.Sprintf("job-%06d", i)
		table.add(id, fixed{}, 0, "", []byte(strings.Repeat("x", 100+i%50)))
		if i >= 100 {
			slot, _ := table.find(fmt.Sprintf("job-%06d", i-100))
			table.remove(slot)
		}
	}
	if n := len(table.texts.pages); n != 1 {
		t.Errorf("%d pages for 100 jobs", n)
	}
}

// Schedules that no job has any more are freed.
func TestExprsAreReleased(t *testing.T) {
	var table jobTable
	table.init()
	for i := range 3 * unusedMax {
		want := carillon.Job{Schedule: fmt.Sprintf("@every %ds", i+1)}
		expr, err := table.exprs.parse(&want)
		if err != nil {
			t.Fatal(err)
		}
		slot, j := table.add("j", fixed{}, 0, "", nil)
		table.applySpec(j, &want, 0, expr, expr.Bind(1000, 0, 0, 0))
		table.remove(slot)
	}
	if n := len(table.exprs.byKey); n > unusedMax {
		t.Errorf("%d schedules are kept", n)
	}
	if n := len(table.exprs.all); n > unusedMax+len(builtinExprs)+1 {
		t.Errorf("%d places for schedules", n)
	}
}

// What specs have in common is kept once, from the second of them on, and as long as a job has it. Specs that
// have nothing in common have no templates.
func TestTemplates(t *testing.T) {
	spec := func(topic string, i int) []byte {
		return encodeSpec(&carillon.Job{
			Topic: topic, Schedule: "@every 24h", Owner: "acme", Labels: map[string]string{"team": "billing"},
			Payload: fmt.Appendf(nil, "%d", i), Start: fromMilli(int64(i)),
		})
	}
	var table jobTable
	table.init()
	for i := range 1000 {
		table.add(fmt.Sprintf("same-%d", i), fixed{}, 0, "", spec("renewals", i))
		table.add(fmt.Sprintf("other-%d", i), fixed{}, 0, "", spec(fmt.Sprintf("topic-%d", i), i))
	}
	templates := &table.texts.specs
	if n := len(templates.byEnds); n != 1 {
		t.Errorf("%d templates", n)
	}
	for i := range 1000 {
		for id, want := range map[string][]byte{fmt.Sprintf("same-%d", i): spec("renewals", i), fmt.Sprintf("other-%d", i): spec(fmt.Sprintf("topic-%d", i), i)} {
			slot, j := table.find(id)
			if got := table.spec(j); !bytes.Equal(got, want) {
				t.Fatalf("%s has the spec %q, want %q", id, got, want)
			}
			table.remove(slot)
		}
	}
	if len(templates.byEnds) != 0 || len(templates.free) != 1 || table.texts.bytes != 0 {
		t.Errorf("without jobs there are %d templates, and %d bytes of texts", len(templates.byEnds), table.texts.bytes)
	}
}

// A start whose bytes are not those that encodeSpec would write gets no template, which would lose them.
func TestStartInOtherBytes(t *testing.T) {
	spec := encodeSpec(&carillon.Job{Topic: "renewals", Schedule: "@every 24h", Start: fromMilli(1)})
	at, _ := cutsOf(spec)
	spec = slices.Replace(spec, at.start, at.back, 0x82, 0) // 1 in two bytes instead of one
	var table jobTable
	table.init()
	for i := range 2 * templateAt {
		_, j := table.add(fmt.Sprint("job-", i), fixed{}, 0, "", spec)
		if got := table.spec(j); !bytes.Equal(got, spec) {
			t.Fatalf("job %d has the spec %q, want %q", i, got, spec)
		}
	}
}

// What all requests of a client begin with is kept once, for as long as a job has one of them.
func TestRequestsOfAClient(t *testing.T) {
	var table jobTable
	table.init()
	request := func(i int) string { return fmt.Sprint("X5OODMZHH7DCJZUX-", i) }
	for i := range 1000 {
		table.add(fmt.Sprint("job-", i), fixed{}, 0, request(i), nil)
		table.add(fmt.Sprint("other-", i), fixed{}, 0, fmt.Sprintf("%016d-%d", i/3, i), nil)
	}
	clients := &table.texts.clients
	if n := len(clients.byEnds); n != 1 {
		t.Errorf("%d clients have a template, of one that comes often", n)
	}
	for i := range 1000 {
		slot, j := table.find(fmt.Sprint("job-", i))
		if got := table.request(j); string(got) != request(i) {
			t.Fatalf("the request is %q, want %q", got, request(i))
		}
		table.remove(slot)
	}
	if len(clients.byEnds) != 0 || len(clients.free) != 1 {
		t.Errorf("without a job of theirs there are %d templates of clients", len(clients.byEnds))
	}
}

// A recurring job as the Go client puts it, with a ten-byte id and a start of its own, takes this much of the pages beyond its
// payload: id 11, fixed 12 (four of them the time from acceptance to start), request 4 with its template, template and start of the spec 2,
// length of the payload 2.
func TestTextsOfARecurringJob(t *testing.T) {
	const n, payload, accepted, halfHour = 10_000, 200, 1_800_000_000_000, 1_800_000
	var table jobTable
	table.init()
	for i := range n {
		start := int64(accepted + halfHour + i)
		spec := encodeSpec(&carillon.Job{Topic: "renewals", Schedule: "@every 24h", Payload: bytes.Repeat([]byte("x"), payload), Start: fromMilli(start)})
		f := fixed{order: 100_000 + uint64(i), version: 1, accepted: accepted, put: 100_000 + uint64(i)}
		table.add(fmt.Sprintf("job-%06d", i), f, start, fmt.Sprintf("X5OODMZHH7DCJZUX-%s", strconv.FormatUint(uint64(i), 36)), spec)
	}
	if each := float64(table.texts.bytes)/n - payload; each > 33 {
		t.Errorf("%.1f bytes a job", each)
	}
}

// A table goes on when its pages have all the places that a ref can name: it stores further texts one by one.
func TestTextsBeyondTheLastPage(t *testing.T) {
	var table jobTable
	table.init()
	table.texts.pages = make([][]byte, pagesMost) // as if they were full
	table.texts.next = pageUnits
	for i := range 10 {
		table.add(fmt.Sprint("job-", i), fixed{order: uint64(i)}, 0, "", fmt.Append(nil, i))
	}
	for i := range 10 {
		slot, j := table.find(fmt.Sprint("job-", i))
		if j == nil || table.fixed(j).order != uint64(i) || string(table.spec(j)) != fmt.Sprint(i) {
			t.Fatalf("job %d is not what was added", i)
		}
		table.remove(slot)
	}
	if n := table.texts.bytes; n != 0 || len(table.texts.pages) != pagesMost {
		t.Errorf("%d bytes and %d pages without jobs", n, len(table.texts.pages))
	}
}

func TestJobIsALine(t *testing.T) {
	if size := unsafe.Sizeof(job{}); size != cacheLine {
		t.Errorf("a job takes %d bytes, want %d", size, cacheLine)
	}
}
