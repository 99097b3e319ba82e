package main

import (
	"fmt"
	"strconv"
	"strings"
)

// plantStaleRead replaces what a read found by an older value: one that was written, and known to
// be overwritten before the read began. It returns what it did; nothing if no read allows it.
func plantStaleRead(h *history) string {
	isStore := map[string]bool{"set": true, "replace": true, "add": true}
	writers := map[[2]string]int{}
	stores := map[string][]*operation{}
	for _, o := range h.operations {
		if o.Value != "" {
			writers[[2]string{o.Key, o.Value}]++
		}
		if isStore[o.Kind] && o.known() && o.Result == "stored" {
			stores[o.Key] = append(stores[o.Key], o)
		}
	}
	for place := len(h.operations) - 1; place >= 0; place-- {
		read := h.operations[place]
		if read.Kind != "get" || !read.known() || read.Result != "hit" {
			continue
		}
		for _, newer := range stores[read.Key] {
			if newer.Value == read.Found && newer.Returned < read.Called {
				for _, older := range stores[read.Key] {
					isUnique := writers[[2]string{older.Key, older.Value}] == 1 && !derived(h, older)
					if older.Returned < newer.Called && older.Value != newer.Value && isUnique {
						was := read.Found
						read.Found = older.Value
						return fmt.Sprintf("key %q, read at %d: %s instead of %s",
							read.Key, read.Called, older.Value, was)
					}
				}
			}
		}
	}
	return plantStaleCount(h)
}

// plantStaleCount does the same for a counter that is only set, at first, and incremented.
func plantStaleCount(h *history) string {
	isCounter := map[string]bool{}
	lowest := map[string]*operation{}
	for _, o := range h.operations {
		if _, known := isCounter[o.Key]; !known {
			isCounter[o.Key] = true
		}
		if o.Kind != "get" && o.Kind != "incr" && (o.Kind != "set" || o.Value != "0") {
			isCounter[o.Key] = false
		}
		if first := lowest[o.Key]; o.Result == "number" && (first == nil || o.Number < first.Number) {
			lowest[o.Key] = o
		}
	}
	for _, read := range h.operations {
		first := lowest[read.Key]
		if read.Kind != "get" || read.Result != "hit" || !isCounter[read.Key] || first == nil {
			continue
		}
		for _, newer := range h.operations {
			if newer.Key == read.Key && newer.Result == "number" && newer.Number > first.Number &&
				first.Returned < newer.Called && newer.Returned < read.Called {
				was := read.Found
				read.Found = strconv.FormatUint(first.Number, 10)
				return fmt.Sprintf("key %q, read at %d: %s instead of %s",
					read.Key, read.Called, read.Found, was)
			}
		}
	}
	return ""
}

// derived says whether incr or append may have made the value of a store out of another.
func derived(h *history, store *operation) bool {
	_, err := strconv.ParseUint(store.Value, 10, 64)
	for _, o := range h.operations {
		if o.Key != store.Key {
			continue
		}
		if o.Kind == "prepend" || o.Kind == "incr" && err == nil {
			return true
		}
		if o.Kind == "append" && o.Value != "" && strings.HasSuffix(store.Value, o.Value) {
			return true
		}
	}
	return false
}
