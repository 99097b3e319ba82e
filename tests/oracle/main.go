// Oracle checks histories for linearizability with porcupine, a checker that is not this
// project's, and compares the verdict with the project's own, which the history has.
//
// usage: oracle [-seconds N] [-planted] [-violated N] FILE|FOLDER ...
//
// It prints a line for each history. A history that is not linearizable where the project's own
// checker found nothing, the reverse, and one that takes too long are failures, and the exit code
// is 1. A picture of a history that is not linearizable is written next to it. With -planted a
// stale read is planted into each history, which must then not be linearizable. With -violated fewer
// than N histories that are not linearizable, as those of mutants, are a failure too.
package main

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

type sums struct {
	histories, operations, violated, planted, failed int
	spent                                            time.Duration
}

// verdict checks a history key by key: what it found, and the key that it found it at.
func verdict(h *history, limit time.Duration) (porcupine.CheckResult, string) {
	end := time.Now().Add(limit)
	byKey := partitions(h)
	keys := make([]string, 0, len(byKey))
	for key := range byKey {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	for _, key := range keys {
		left := time.Until(end)
		if left <= 0 {
			return porcupine.Unknown, key
		}
		found := porcupine.CheckOperationsTimeout(model(h.Forgets), byKey[key], left)
		if found != porcupine.Ok {
			return found, key
		}
	}
	return porcupine.Ok, ""
}

// draw writes porcupine's picture of one key next to the history.
func draw(h *history, key, path string, limit time.Duration) {
	one := model(h.Forgets)
	_, info := porcupine.CheckOperationsVerbose(one, partitions(h)[key], limit)
	picture := strings.TrimSuffix(path, ".jsonl") + ".html"
	if err := porcupine.VisualizePath(one, info, picture); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	fmt.Println("    ", picture)
}

func (s *sums) check(path string, limit time.Duration, plants bool) {
	h, err := load(path)
	if err != nil {
		fmt.Println("FAILED ", err)
		s.failed++
		return
	}
	s.histories++
	s.operations += len(h.operations)
	start := time.Now()
	found, key := verdict(h, limit)
	took := time.Since(start)
	s.spent += took
	own := h.Own
	if own == "" {
		own = "nothing"
	}
	agrees := found == porcupine.Ok && own == "holds" || found == porcupine.Illegal && own == "violated"
	// Where no checker of the project looked, the history must be linearizable.
	isWell := agrees || h.Own == "" && found == porcupine.Ok
	says := map[porcupine.CheckResult]string{
		porcupine.Ok: "linearizable", porcupine.Illegal: "NOT LINEARIZABLE",
		porcupine.Unknown: "NO VERDICT IN TIME",
	}[found]
	fmt.Printf("%s: %s, own checker: %s; %d operations, %.1f ms\n",
		path, says, own, len(h.operations), took.Seconds()*1000)
	if found == porcupine.Illegal {
		s.violated++
		fmt.Printf("     key %q of %s\n", key, h.Source)
		draw(h, key, path, limit)
	}
	if !isWell {
		s.failed++
		fmt.Println("FAILED  the oracle and the own checker differ, or there is no verdict:", h.Source)
		for number, violation := range h.Violations {
			if number < 5 {
				fmt.Println("     own checker:", violation)
			}
		}
	}
	if plants && found == porcupine.Ok {
		s.plant(path, h, limit)
	}
}

// plant makes a read stale, and expects to see it.
func (s *sums) plant(path string, h *history, limit time.Duration) {
	what := plantStaleRead(h)
	if what == "" {
		return
	}
	s.planted++
	if found, _ := verdict(h, limit); found != porcupine.Illegal {
		s.failed++
		fmt.Printf("FAILED  %s: a planted stale read is not seen (%s): %s\n", path, found, what)
	}
}

func main() {
	seconds := flag.Float64("seconds", 20, "time for one history")
	plants := flag.Bool("planted", false, "also plant a stale read into each history")
	violated := flag.Int("violated", 0, "how many histories must not be linearizable, at least")
	flag.Parse()
	var paths []string
	for _, root := range flag.Args() {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() && strings.HasSuffix(path, ".jsonl") {
				paths = append(paths, path)
			}
			return err
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	sort.Strings(paths)
	var s sums
	for _, path := range paths {
		s.check(path, time.Duration(*seconds*float64(time.Second)), *plants)
	}
	if s.violated < *violated {
		s.failed++
		fmt.Printf("FAILED  not %d histories were found not to be linearizable\n", *violated)
	}
	fmt.Printf("%d histories, %d operations, %.0f a second; %d not linearizable, %d stale reads "+
		"planted and looked for, %d failures\n", s.histories, s.operations,
		float64(s.operations)/max(s.spent.Seconds(), 1e-9), s.violated, s.planted, s.failed)
	if s.failed > 0 || s.histories == 0 {
		os.Exit(1)
	}
}
