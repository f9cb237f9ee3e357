package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// options are the flags.
type options struct {
	long     bool
	workload string
	system   string
	rounds   int
	out      string
}

// flags adds the flags to set, with a usage that lists the names.
func (o *options) flags(set *flag.FlagSet) {
	set.BoolVar(&o.long, "long", false, "run all workloads, with more events and time")
	set.StringVar(&o.workload, "workload", "",
		"run only these workloads, with commas between: a `name`, or else a part of names; a curve runs if named")
	set.StringVar(&o.system, "system", "", "run only these systems, with commas between their `names`")
	set.IntVar(&o.rounds, "rounds", 3, "measure so many times")
	set.StringVar(&o.out, "out", "", "write performance.md and performance/ in this `folder`, and keep the figures there "+
		"of workloads that do not run; without -out the report goes to stdout")
	set.Usage = func() {
		fmt.Fprintln(os.Stderr, "Usage of bench:")
		set.PrintDefaults()
		fmt.Fprintf(os.Stderr, "\n%s\n\n%s\n", workloadNames(), systemNames())
	}
}

func (o options) sizes() sizes {
	if o.long {
		return long
	}
	return short
}

// choose returns the workloads to run with their systems, or an error that names the flag to correct.
func (o options) choose(args []string) ([]workload, error) {
	if len(args) > 0 {
		return nil, fmt.Errorf("unexpected argument %q: put names with spaces in quotes", args[0])
	}
	if o.rounds < 1 {
		return nil, fmt.Errorf("-rounds %d: measure at least once", o.rounds)
	}
	all := slices.DeleteFunc(workloads(o.sizes()), func(w workload) bool {
		return w.long && !o.long && (w.curve == nil || o.workload == "")
	})
	if o.workload != "" {
		named := make(map[string]bool)
		for part := range strings.SplitSeq(o.workload, ",") {
			matches := func(w workload) bool { return w.name == part }
			if !slices.ContainsFunc(all, matches) {
				matches = func(w workload) bool { return part != "" && strings.Contains(w.name, part) }
			}
			if !slices.ContainsFunc(all, matches) {
				return nil, fmt.Errorf("-workload: no workload that runs has %q in its name.\n%s", part, workloadNames())
			}
			for _, w := range all {
				named[w.name] = named[w.name] || matches(w)
			}
		}
		all = slices.DeleteFunc(all, func(w workload) bool { return !named[w.name] })
	}
	if o.system == "" {
		return all, nil
	}
	systems := strings.Split(o.system, ",")
	for _, name := range systems {
		if !slices.Contains(allSystems(), name) {
			return nil, fmt.Errorf("-system: there is no %q.\n%s", name, systemNames())
		}
	}
	for i := range all {
		all[i].systems = slices.DeleteFunc(all[i].systems, func(s system) bool {
			return !slices.Contains(systems, s.Info().name)
		})
	}
	all = slices.DeleteFunc(all, func(w workload) bool { return len(w.systems) == 0 })
	if len(all) == 0 {
		return nil, fmt.Errorf("-system: none of the workloads has %q", o.system)
	}
	return all, nil
}

// workloadNames lists the workloads that can be named, and those that need -long.
func workloadNames() string {
	var names, more []string
	for _, w := range workloads(short) {
		if w.curve != nil || !w.long {
			names = append(names, w.name)
		}
	}
	for _, w := range workloads(long) {
		if !slices.Contains(names, w.name) {
			more = append(more, w.name)
		}
	}
	return wrap("Workloads: "+strings.Join(names, ", ")) + "\n" + wrap("With -long also: "+strings.Join(more, ", "))
}

func systemNames() string { return wrap("Systems: " + strings.Join(allSystems(), ", ")) }

// allSystems returns the names of the systems and their variants.
func allSystems() []string {
	names := make(map[string]bool)
	for _, w := range workloads(long) {
		for _, s := range w.systems {
			names[s.Info().name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}
