package main

import (
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// Each case is a history in short: one operation a line, as JSON without client and key. A case
// fails to be linearizable if it says so.
var cases = []struct {
	name, head, lines string
	want              porcupine.CheckResult
}{
	{"a stale read", "", `
		"kind":"set","value":"1","called":0,"returned":1,"outcome":"known","result":"stored"
		"kind":"set","value":"2","called":2,"returned":3,"outcome":"known","result":"stored"
		"kind":"get","called":4,"returned":5,"outcome":"known","result":"hit","found":"1"`,
		porcupine.Illegal},
	{"a concurrent read", "", `
		"kind":"set","value":"1","called":0,"returned":1,"outcome":"known","result":"stored"
		"kind":"set","value":"2","called":2,"returned":5,"outcome":"known","result":"stored"
		"kind":"get","called":4,"returned":5,"outcome":"known","result":"hit","found":"1"`,
		porcupine.Ok},
	{"an unknown write that is seen, and then not", "", `
		"kind":"set","value":"1","called":0,"returned":1,"outcome":"known","result":"stored"
		"kind":"set","value":"2","called":2,"outcome":"unknown"
		"kind":"get","called":4,"returned":5,"outcome":"known","result":"hit","found":"1"
		"kind":"get","called":6,"returned":7,"outcome":"known","result":"hit","found":"2"
		"kind":"get","called":8,"returned":9,"outcome":"known","result":"hit","found":"1"`,
		porcupine.Illegal},
	{"an unknown write that is seen late", "", `
		"kind":"set","value":"1","called":0,"returned":1,"outcome":"known","result":"stored"
		"kind":"set","value":"2","called":2,"outcome":"unknown"
		"kind":"get","called":4,"returned":5,"outcome":"known","result":"hit","found":"1"
		"kind":"get","called":8,"returned":9,"outcome":"known","result":"hit","found":"2"`,
		porcupine.Ok},
	{"a refused write that is seen", "", `
		"kind":"set","value":"1","called":0,"returned":1,"outcome":"refused"
		"kind":"get","called":4,"returned":5,"outcome":"known","result":"hit","found":"1"`,
		porcupine.Illegal},
	{"an increment that counts twice", "", `
		"kind":"incr","delta":1,"initial":1,"called":0,"returned":1,"outcome":"known","result":"number","number":1
		"kind":"incr","delta":1,"initial":1,"called":2,"returned":3,"outcome":"known","result":"number","number":3`,
		porcupine.Illegal},
	{"unknown increments, one of which counts", "", `
		"kind":"incr","delta":1,"initial":1,"called":0,"returned":1,"outcome":"known","result":"number","number":1
		"kind":"incr","delta":1,"initial":1,"called":2,"outcome":"unknown"
		"kind":"incr","delta":1,"initial":1,"called":2,"outcome":"unknown"
		"kind":"incr","delta":1,"initial":1,"called":4,"returned":5,"outcome":"known","result":"number","number":3`,
		porcupine.Ok},
	{"two winners of one id", "", `
		"kind":"set","value":"1","called":0,"returned":1,"outcome":"known","result":"stored"
		"kind":"gets","called":2,"returned":3,"outcome":"known","result":"hit","found":"1","found_cas":7
		"kind":"cas","value":"2","cas":7,"called":4,"returned":9,"outcome":"known","result":"stored"
		"kind":"cas","value":"3","cas":7,"called":4,"returned":9,"outcome":"known","result":"stored"`,
		porcupine.Illegal},
	{"an id that nobody was shown", "", `
		"kind":"set","value":"1","called":0,"returned":1,"outcome":"known","result":"stored"
		"kind":"cas","value":"2","cas":0,"called":4,"returned":9,"outcome":"known","result":"exists"`,
		porcupine.Ok},
	{"a lost append", "", `
		"kind":"set","value":"-","called":0,"returned":1,"outcome":"known","result":"stored"
		"kind":"append","value":"a","called":2,"returned":9,"outcome":"known","result":"stored"
		"kind":"append","value":"b","called":2,"returned":9,"outcome":"known","result":"stored"
		"kind":"get","called":10,"returned":11,"outcome":"known","result":"hit","found":"-b"`,
		porcupine.Illegal},
	{"a deleted item that is back", "", `
		"kind":"set","value":"1","called":0,"returned":1,"outcome":"known","result":"stored"
		"kind":"delete","called":2,"returned":3,"outcome":"known","result":"deleted"
		"kind":"get","called":4,"returned":5,"outcome":"known","result":"hit","found":"1"`,
		porcupine.Illegal},
	{"a miss in a store", "", `
		"kind":"set","value":"1","called":0,"returned":1,"outcome":"known","result":"stored"
		"kind":"get","called":4,"returned":5,"outcome":"known","result":"not_found"`,
		porcupine.Illegal},
	{"a miss in a cache", `,"forgets":true`, `
		"kind":"set","value":"1","called":0,"returned":1,"outcome":"known","result":"stored"
		"kind":"get","called":4,"returned":5,"outcome":"known","result":"not_found"`,
		porcupine.Ok},
	{"a deleted item that is back in a cache", `,"forgets":true`, `
		"kind":"set","value":"1","called":0,"returned":1,"outcome":"known","result":"stored"
		"kind":"delete","called":2,"returned":3,"outcome":"known","result":"not_found"
		"kind":"get","called":4,"returned":5,"outcome":"known","result":"hit","found":"1"`,
		porcupine.Illegal},
	{"an item that dies in time", "", `
		"kind":"set","value":"1","ttl_seconds":2,"called":0,"returned":1,"outcome":"known","result":"stored"
		"kind":"get","called":500,"returned":501,"outcome":"known","result":"hit","found":"1"
		"kind":"get","called":2500,"returned":2501,"outcome":"known","result":"not_found"`,
		porcupine.Ok},
	{"an item that dies early", "", `
		"kind":"set","value":"1","ttl_seconds":2,"called":0,"returned":1,"outcome":"known","result":"stored"
		"kind":"get","called":500,"returned":501,"outcome":"known","result":"not_found"`,
		porcupine.Illegal},
	{"an item that outlives its time", "", `
		"kind":"set","value":"1","ttl_seconds":2,"called":0,"returned":1,"outcome":"known","result":"stored"
		"kind":"get","called":3500,"returned":3501,"outcome":"known","result":"hit","found":"1"`,
		porcupine.Illegal},
	{"a touch that keeps an item", "", `
		"kind":"set","value":"1","ttl_seconds":2,"called":0,"returned":1,"outcome":"known","result":"stored"
		"kind":"touch","ttl_seconds":9,"called":100,"returned":101,"outcome":"known","result":"touched"
		"kind":"get","called":3500,"returned":3501,"outcome":"known","result":"hit","found":"1"`,
		porcupine.Ok},
	{"a flush that leaves an item", "", `
		"kind":"set","value":"1","called":0,"returned":1,"outcome":"known","result":"stored"
		"kind":"flush","called":2,"returned":3,"outcome":"known","result":"flushed"
		"kind":"get","called":4,"returned":5,"outcome":"known","result":"hit","found":"1"`,
		porcupine.Illegal},
}

func write(t *testing.T, header, lines string) string {
	t.Helper()
	text := `{"form":1,"source":"a test","nanoseconds_per_unit":1000000` + header + "}\n"
	for _, line := range strings.Split(strings.TrimSpace(lines), "\n") {
		text += `{"client":"a","key":"k",` + strings.TrimSpace(line) + "}\n"
	}
	path := filepath.Join(t.TempDir(), "history.jsonl")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestVerdicts(t *testing.T) {
	for _, one := range cases {
		t.Run(one.name, func(t *testing.T) {
			h, err := load(write(t, one.head, one.lines))
			if err != nil {
				t.Fatal(err)
			}
			if found, _ := verdict(h, time.Minute); found != one.want {
				t.Errorf("%s, not %s", found, one.want)
			}
		})
	}
}

// The verdict of the own checker counts in both directions, and so does one that is missing.
func TestDisagreementIsAFailure(t *testing.T) {
	stale, concurrent := cases[0].lines, cases[1].lines
	for _, one := range []struct {
		own, lines string
		failed     int
	}{
		{`,"own":"holds"`, stale, 1}, {`,"own":"violated"`, stale, 0}, {"", stale, 1},
		{`,"own":"holds"`, concurrent, 0}, {`,"own":"violated"`, concurrent, 1}, {"", concurrent, 0},
	} {
		var s sums
		path := write(t, one.own, one.lines)
		s.check(path, time.Minute, false)
		if s.failed != one.failed {
			t.Errorf("%q: %d failures, not %d", one.own, s.failed, one.failed)
		}
		picture := strings.TrimSuffix(path, ".jsonl") + ".html"
		if _, err := os.Stat(picture); (err == nil) != (s.violated == 1) {
			t.Errorf("%q: the picture: %v", one.own, err)
		}
	}
}

// Many unknown operations on one key do not make the search long.
func TestUnknownOperationsAreCheap(t *testing.T) {
	lines := `"kind":"set","value":"0","called":0,"returned":1,"outcome":"known","result":"stored"`
	for number := 0; number < 40; number++ {
		lines += "\n" + `"kind":"incr","delta":1,"called":2,"outcome":"unknown"`
		lines += "\n" + `"kind":"delete","called":3,"outcome":"unknown"`
	}
	lines += "\n" + `"kind":"get","called":9,"returned":10,"outcome":"known","result":"hit","found":"7"`
	lines += "\n" + `"kind":"get","called":11,"returned":12,"outcome":"known","result":"hit","found":"6"`
	h, err := load(write(t, "", lines))
	if err != nil {
		t.Fatal(err)
	}
	if found, _ := verdict(h, time.Minute); found != porcupine.Illegal {
		t.Errorf("%s: a count went down", found)
	}
}

func TestNonsenseIsRefused(t *testing.T) {
	for _, line := range []string{
		`"kind":"gat","called":0,"returned":1,"outcome":"known","result":"hit"`,
		`"kind":"get","called":0,"returned":1,"outcome":"known","result":"stored"`,
		`"kind":"get","called":2,"returned":1,"outcome":"known","result":"hit"`,
		`"kind":"get","called":0,"returned":1,"outcome":"perhaps"`,
	} {
		if _, err := load(write(t, "", line)); err == nil {
			t.Errorf("it is taken: %s", line)
		}
	}
}

// random returns a short history of one key.
func random(chance *rand.Rand) *history {
	h := &history{}
	h.Forgets = chance.Intn(4) == 0
	kinds := []string{"get", "get", "get", "set", "replace", "add", "delete", "set"}
	if chance.Intn(3) == 0 {
		kinds = append(kinds, "incr", "append", "incr")
	}
	for number := 0; number < 3+chance.Intn(6); number++ {
		o := &operation{Client: fmt.Sprint(number), Key: "k", Kind: kinds[chance.Intn(len(kinds))]}
		o.Called = int64(chance.Intn(20))
		o.Returned = o.Called + int64(chance.Intn(10))
		value := fmt.Sprint(1 + chance.Intn(4))
		switch o.Kind {
		case "set", "replace", "add", "append":
			o.Value = value
		case "incr":
			o.Delta = 1
		}
		o.Outcome = []string{"known", "known", "known", "unknown"}[chance.Intn(4)]
		choices := append([]string{"not_found"}, results[o.Kind]...)
		o.Result = choices[len(choices)-1-chance.Intn(len(choices))*chance.Intn(2)]
		o.Found, o.Number = value, uint64(1+chance.Intn(4))
		if !o.known() {
			o.Result = ""
		}
		h.operations = append(h.operations, o)
	}
	return h
}

// What prepare leaves out or bounds never changes a verdict.
func TestPrepareKeepsVerdicts(t *testing.T) {
	chance := rand.New(rand.NewSource(1))
	counts := map[porcupine.CheckResult]int{}
	for round := 0; round < 50_000; round++ {
		h := random(chance)
		var all []porcupine.Operation
		for number, o := range h.operations {
			returned := o.Returned
			if !o.known() {
				if o.Kind == "get" {
					continue
				}
				returned = 1000
			}
			all = append(all, porcupine.Operation{
				ClientId: number, Input: o, Call: o.Called, Return: returned,
			})
		}
		want := porcupine.CheckOperationsTimeout(model(h.Forgets), all, time.Minute)
		counts[want]++
		if found, _ := verdict(h, time.Minute); found != want {
			for _, o := range h.operations {
				t.Log(o.Called, o.Returned, o)
			}
			t.Fatalf("round %d, forgets: %v: %s, not %s", round, h.Forgets, found, want)
		}
	}
	if counts[porcupine.Ok] < 2_000 || counts[porcupine.Illegal] < 2_000 {
		t.Errorf("one-sided: %v", counts)
	}
}
