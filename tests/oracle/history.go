package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
)

// head is the first line of a history; docs/histories.md describes the form.
type head struct {
	Form               int      `json:"form"`
	Source             string   `json:"source"`
	NanosecondsPerUnit int64    `json:"nanoseconds_per_unit"`
	Forgets            bool     `json:"forgets"`
	Own                string   `json:"own"`
	Violations         []string `json:"violations"`
}

// operation is any other line. Times are in units until load has converted them to nanoseconds.
type operation struct {
	Client     string  `json:"client"`
	Key        string  `json:"key"`
	Kind       string  `json:"kind"`
	Value      string  `json:"value"`
	Cas        uint64  `json:"cas"`
	Delta      uint64  `json:"delta"`
	Initial    *uint64 `json:"initial"`
	TTLSeconds *int64  `json:"ttl_seconds"`
	Called     int64   `json:"called"`
	Returned   int64   `json:"returned"`
	Outcome    string  `json:"outcome"`
	Result     string  `json:"result"`
	Found      string  `json:"found"`
	FoundCas   *uint64 `json:"found_cas"`
	Number     uint64  `json:"number"`

	// rank is the number of equal unknown operations that must take effect before this one; see
	// prepare.
	rank int
	// group names the unknown operations that are equal to this one.
	group string
}

func (o *operation) known() bool { return o.Outcome == "known" }

type history struct {
	head
	operations []*operation
}

// load reads a history. What it does not know is an error: a field that is ignored would be a
// check that is not made.
func load(path string) (*history, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 64<<20)
	h := &history{}
	for number := 1; lines.Scan(); number++ {
		if len(lines.Bytes()) == 0 {
			continue
		}
		if number == 1 {
			err = json.Unmarshal(lines.Bytes(), &h.head)
			if err == nil && (h.Form != 1 || h.NanosecondsPerUnit < 1) {
				err = fmt.Errorf("form %d, unit of %d ns", h.Form, h.NanosecondsPerUnit)
			}
		} else {
			o := &operation{}
			err = json.Unmarshal(lines.Bytes(), o)
			if err == nil {
				err = o.check()
			}
			o.Called *= h.NanosecondsPerUnit
			o.Returned *= h.NanosecondsPerUnit
			h.operations = append(h.operations, o)
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, number, err)
		}
	}
	if h.Form == 0 && lines.Err() == nil {
		return nil, fmt.Errorf("%s: empty", path)
	}
	return h, lines.Err()
}

// results lists the answers of each kind, apart from not_found, which all but flush may get.
var results = map[string][]string{
	"get": {"hit"}, "gets": {"hit"}, "set": {"stored"}, "add": {"stored", "not_stored"},
	"replace": {"stored", "not_stored"}, "append": {"stored", "not_stored"},
	"prepend": {"stored", "not_stored"}, "cas": {"stored", "exists"},
	"incr": {"number", "not_a_number"}, "delete": {"deleted"}, "touch": {"touched"},
	"flush": {"flushed"},
}

func (o *operation) check() error {
	allowed, ok := results[o.Kind]
	if !ok {
		return fmt.Errorf("unknown kind %q", o.Kind)
	}
	switch o.Outcome {
	case "unknown", "refused":
		return nil
	case "known":
	default:
		return fmt.Errorf("unknown outcome %q", o.Outcome)
	}
	if o.Returned < o.Called {
		return fmt.Errorf("it returned before it was called")
	}
	if o.Result == "not_found" && o.Kind != "flush" {
		return nil
	}
	for _, result := range allowed {
		if o.Result == result {
			return nil
		}
	}
	return fmt.Errorf("%s cannot be answered with %q", o.Kind, o.Result)
}
