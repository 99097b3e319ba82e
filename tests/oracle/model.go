package main

import (
	"fmt"
	"math"
	"sort"
	"strconv"
	"time"

	"github.com/anishathalye/porcupine"
)

const forever = math.MaxInt64

// item is the state of one key: what a single server would have.
type item struct {
	exists bool
	value  string
	// cas is the id that some gets showed for this version, if isShown.
	cas     uint64
	isShown bool
	// The item dies at a time between these. Servers know whole seconds, so the time is uncertain
	// by the length of the request and by a second.
	diesFrom, diesUntil int64
	// done counts the unknown operations that took effect, by group; see prepare.
	done string
}

// step says whether an operation could have been answered as it was, and the state afterwards.
// Time enters only where items expire: an operation may find its item dead if it ended after the
// earliest time of death, and alive if it began before the latest.
func step(forgets bool, before item, o *operation) (bool, item) {
	if !o.known() {
		return stepUnknown(before, o)
	}
	after := before
	mayLive := before.exists && o.Called <= before.diesUntil
	mayMiss := forgets || !before.exists || o.Returned >= before.diesFrom
	absent := item{done: before.done}
	if o.Result == "not_found" {
		if !mayMiss {
			return false, before
		}
		if forgets {
			// An item that was evicted may come back from a backup, but not after a delete.
			if o.Kind == "delete" {
				return true, absent
			}
			return true, before
		}
		return true, absent
	}
	switch o.Kind {
	case "get", "gets":
		if !mayLive || before.value != o.Found {
			return false, before
		}
		if o.FoundCas != nil {
			if before.isShown && before.cas != *o.FoundCas {
				return false, before
			}
			after.cas, after.isShown = *o.FoundCas, true
		}
		return true, after
	case "set":
		return true, o.stored(before, o.Value)
	case "add":
		if o.Result == "not_stored" {
			return mayLive, after
		}
		return mayMiss, o.stored(before, o.Value)
	case "replace":
		if o.Result == "not_stored" {
			return mayMiss, missed(forgets, before)
		}
		return mayLive, o.stored(before, o.Value)
	case "append", "prepend":
		if o.Result == "not_stored" {
			return mayMiss, missed(forgets, before)
		}
		return mayLive, o.extended(before)
	case "cas":
		if o.Result == "exists" {
			return mayLive && !before.has(o.Cas), after
		}
		return mayLive && before.has(o.Cas), o.stored(before, o.Value)
	case "incr":
		number, err := strconv.ParseUint(before.value, 10, 64)
		if o.Result == "not_a_number" {
			return mayLive && err != nil, after
		}
		if mayLive && err == nil && number+o.Delta == o.Number {
			after.value, after.isShown = strconv.FormatUint(o.Number, 10), false
			return true, after
		}
		if mayMiss && o.Initial != nil && *o.Initial == o.Number {
			return true, o.stored(before, strconv.FormatUint(o.Number, 10))
		}
		return false, before
	case "delete":
		return mayLive, absent
	case "touch":
		after.diesFrom, after.diesUntil = o.death()
		return mayLive, after
	case "flush":
		return true, absent
	}
	panic("load checked the kinds")
}

func (i item) has(cas uint64) bool { return i.isShown && i.cas == cas }

func missed(forgets bool, before item) item {
	if forgets {
		return before
	}
	return item{done: before.done}
}

// stepUnknown lets an operation take effect of which nobody knows whether it did. One that never
// did comes last, where nobody sees it.
func stepUnknown(before item, o *operation) (bool, item) {
	done, ok := before.takes(o)
	if !ok {
		return false, before
	}
	before.done = done
	after := before
	lives := before.exists && o.Called <= before.diesUntil
	switch o.Kind {
	case "set":
		after = o.stored(before, o.Value)
	case "add":
		if !lives {
			after = o.stored(before, o.Value)
		}
	case "replace":
		if lives {
			after = o.stored(before, o.Value)
		}
	case "append", "prepend":
		if lives {
			after = o.extended(before)
		}
	case "cas":
		if lives && before.has(o.Cas) {
			after = o.stored(before, o.Value)
		}
	case "incr":
		number, err := strconv.ParseUint(before.value, 10, 64)
		if lives && err == nil {
			after.value, after.isShown = strconv.FormatUint(number+o.Delta, 10), false
		} else if !lives && o.Initial != nil {
			after = o.stored(before, strconv.FormatUint(*o.Initial, 10))
		}
	case "delete", "flush":
		after = item{done: before.done}
	case "touch":
		if lives {
			after.diesFrom, after.diesUntil = o.death()
		}
	}
	return true, after
}

func (o *operation) stored(before item, value string) item {
	from, until := o.death()
	return item{exists: true, value: value, diesFrom: from, diesUntil: until, done: before.done}
}

func (o *operation) extended(before item) item {
	before.isShown = false
	if o.Kind == "append" {
		before.value += o.Value
	} else {
		before.value = o.Value + before.value
	}
	return before
}

func (o *operation) death() (int64, int64) {
	if o.TTLSeconds == nil {
		return forever, forever
	}
	if !o.known() {
		return o.Called + (*o.TTLSeconds-1)*int64(time.Second), forever
	}
	ttl := *o.TTLSeconds
	return o.Called + (ttl-1)*int64(time.Second), o.Returned + (ttl+1)*int64(time.Second)
}

// takes counts an unknown operation. Equal ones take effect in the order of their calls: they can
// be exchanged, so no other order explains more, and without this rule a search tries them all.
func (i item) takes(o *operation) (string, bool) {
	if o.group == "" {
		return i.done, true
	}
	counts := parseCounts(i.done)
	if counts[o.group] != o.rank {
		return i.done, false
	}
	counts[o.group]++
	return formatCounts(counts), true
}

func parseCounts(text string) map[string]int {
	counts := map[string]int{}
	for len(text) > 0 {
		var group string
		var count, length int
		fmt.Sscanf(text, "%d:%d;", &length, &count)
		start := len(fmt.Sprintf("%d:%d;", length, count))
		group, text = text[start:start+length], text[start+length:]
		counts[group] = count
	}
	return counts
}

func formatCounts(counts map[string]int) string {
	groups := make([]string, 0, len(counts))
	for group := range counts {
		groups = append(groups, group)
	}
	sort.Strings(groups)
	text := ""
	for _, group := range groups {
		text += fmt.Sprintf("%d:%d;%s", len(group), counts[group], group)
	}
	return text
}

// model is porcupine's view of one key.
func model(forgets bool) porcupine.Model {
	return porcupine.Model{
		Init: func() interface{} { return item{} },
		Step: func(state, input, _ interface{}) (bool, interface{}) {
			return boxed(step(forgets, state.(item), input.(*operation)))
		},
		Hash: func(state interface{}) uint64 {
			hash := uint64(14695981039346656037)
			one := state.(item)
			for _, text := range [2]string{one.value, one.done} {
				for _, byte := range []byte(text) {
					hash = (hash ^ uint64(byte)) * 1099511628211
				}
			}
			return hash
		},
		DescribeOperation: func(input, _ interface{}) string { return input.(*operation).String() },
		DescribeState: func(state interface{}) string {
			if one := state.(item); one.exists {
				return one.value
			}
			return "absent"
		},
	}
}

func boxed(ok bool, after item) (bool, interface{}) { return ok, after }

func (o *operation) String() string {
	text := o.Kind
	switch o.Kind {
	case "incr":
		text += fmt.Sprintf(" %d", o.Delta)
	case "cas":
		text += fmt.Sprintf(" %s if %d", o.Value, o.Cas)
	default:
		if o.Value != "" {
			text += " " + o.Value
		}
	}
	switch {
	case !o.known():
		return text + ": " + o.Outcome
	case o.Result == "hit":
		return text + ": " + o.Found
	case o.Result == "number":
		return text + ": " + strconv.FormatUint(o.Number, 10)
	}
	return text + ": " + o.Result
}

// partitions returns the operations of each key as porcupine wants them, by key. Refused ones took
// no effect and are left out: whoever saw their value saw what nobody wrote. A flush is part of
// every key.
func partitions(h *history) map[string][]porcupine.Operation {
	byKey := map[string][]*operation{}
	var flushes []*operation
	for _, o := range h.operations {
		switch {
		case o.Outcome == "refused" || !o.known() && (o.Kind == "get" || o.Kind == "gets"):
		case o.Kind == "flush":
			flushes = append(flushes, o)
		default:
			byKey[o.Key] = append(byKey[o.Key], o)
		}
	}
	result := map[string][]porcupine.Operation{}
	for key, operations := range byKey {
		result[key] = prepare(append(operations, flushes...))
	}
	return result
}

// prepare bounds the search for one key, without a change of the verdict:
//
//  1. An unknown store whose value nobody else writes, and which somebody read, took effect before
//     the first such read ended.
//  2. An unknown replace whose value nobody read may be left out, if the key sees only reads,
//     replaces, adds, sets and deletes: between it and the next write nobody read anything, and the
//     item existed before it as well.
//  3. Of the reads of a value that nobody else writes, the one that ended first and the one that
//     began last are enough, if the key sees only such operations: the value was in force once
//     without a break, from before the first end until after the last beginning or longer, and
//     every other read can be placed between.
//  4. Other equal unknown operations take effect in the order of their calls; see takes.
func prepare(operations []*operation) []porcupine.Operation {
	clients := map[string]int{}
	writers := map[string]int{}
	firstEnd, lastBegin := map[string]*operation{}, map[string]*operation{}
	isPlain := true
	end := int64(0)
	for _, o := range operations {
		switch o.Kind {
		case "set", "add", "replace", "cas":
			writers[o.Value]++
		case "append", "prepend", "incr":
			isPlain = false
		}
		if o.Kind == "cas" || o.TTLSeconds != nil {
			isPlain = false
		}
		if o.Result == "hit" {
			if first := firstEnd[o.Found]; first == nil || o.Returned < first.Returned {
				firstEnd[o.Found] = o
			}
			if last := lastBegin[o.Found]; last == nil || o.Called > last.Called {
				lastBegin[o.Found] = o
			}
		}
		if o.Called >= end {
			end = o.Called + 1
		}
		if o.Returned >= end {
			end = o.Returned + 1
		}
	}
	sorted := append([]*operation(nil), operations...)
	sort.SliceStable(sorted, func(a, b int) bool { return sorted[a].Called < sorted[b].Called })
	ranks := map[string]int{}
	result := make([]porcupine.Operation, 0, len(sorted))
	for _, shared := range sorted {
		if isPlain && shared.Kind == "get" && shared.Result == "hit" && writers[shared.Found] < 2 &&
			shared != firstEnd[shared.Found] && shared != lastBegin[shared.Found] {
			continue
		}
		copied := *shared
		o := &copied
		returned := o.Returned
		if !o.known() {
			returned = end
			first := firstEnd[o.Value]
			isSet := o.Kind == "set" || o.Kind == "add" || o.Kind == "replace"
			switch {
			case isPlain && isSet && first != nil && writers[o.Value] == 1:
				if returned = first.Returned; returned < o.Called {
					// It was read before it began; the search will say so.
					returned = o.Called
				}
			case isPlain && o.Kind == "replace" && first == nil:
				continue
			case o.TTLSeconds == nil:
				initial := ""
				if o.Initial != nil {
					initial = strconv.FormatUint(*o.Initial, 10)
				}
				o.group = fmt.Sprint(o.Kind, " ", o.Delta, " ", initial, " ", o.Cas, " ", o.Value)
				o.rank = ranks[o.group]
				ranks[o.group]++
			}
		}
		if _, ok := clients[o.Client]; !ok {
			clients[o.Client] = len(clients)
		}
		result = append(result, porcupine.Operation{
			ClientId: clients[o.Client], Input: o, Call: o.Called, Return: returned,
		})
	}
	return result
}
