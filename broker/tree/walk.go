// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"strings"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
)

// maxWalkKeys is how many keys are looked at in one step of a walk, while those who write wait.
const maxWalkKeys = 512

// Filter is a topic filter as seen by a node's tree.
type Filter struct {
	node string // its name; "+": any
	keys string // what is left of the filter below the node
	// exact is the one key that the filter covers beside those with the prefix; "": there is none.
	exact, prefix string
	wild          bool // there are keys with the prefix
}

// ParseFilter splits a filter, which may cover nothing of any tree.
func ParseFilter(filter string) (f Filter, ok bool) {
	f.keys = filter
	for i, level := range [...]string{topics.Version, "nodes", "+"} {
		first, rest, more := strings.Cut(f.keys, "/")
		if first == "#" {
			return Filter{node: "+", keys: "#", wild: true}, true
		}
		if i == 2 {
			f.node = first
		} else if first != level && first != "+" {
			return f, false
		}
		if f.keys = rest; !more {
			return f, false
		}
	}
	f.exact = f.keys
	if i := strings.IndexAny(f.keys, "+#"); i >= 0 {
		f.wild, f.prefix, f.exact = true, f.keys[:i], ""
		if f.keys[i] == '#' {
			f.exact = strings.TrimSuffix(f.prefix, "/") // a/# covers a as well
		}
	}
	return f, true
}

// One is the node that the filter is about, if it is about one only.
func (f Filter) One() (node string, ok bool) { return f.node, f.node != "+" }

// EntryRange is a map, or a part of one, whose entries stand in the tree as Show says.
type EntryRange struct {
	Range func(prefix, from string, fn func(link.Entry) bool)
	Show  func(link.Entry) (broker.Message, bool)
}

// Walk is a place in a tree that is read bit by bit. It holds no copy of what
// there is, and goes on where it was whatever has come and gone since.
type Walk struct {
	Filter Filter
	began  bool
	part   int
	from   string // the least key of the part not yet looked at
}

// Step appends the next messages of a tree, until there are as many as are wanted
// or enough keys have been looked at for one step. one shows a single key, of whatever
// part. It returns false when the tree is through.
func (w *Walk) Step(one func(key string) (broker.Message, bool), parts []EntryRange, out *[]broker.Message, most int) (more bool) {
	add := func(m broker.Message, ok bool) {
		if ok {
			*out = append(*out, m)
		}
	}
	f := w.Filter
	if !w.began && f.exact != "" {
		add(one(f.exact))
	}
	w.began = true
	for looked := 0; f.wild && w.part < len(parts); w.part, w.from = w.part+1, "" {
		parts[w.part].Range(f.prefix, w.from, func(e link.Entry) bool {
			if more = looked == maxWalkKeys || len(*out) >= most; more {
				w.from = e.Key
				return false
			}
			looked++
			if topics.Match(f.keys, e.Key) {
				add(parts[w.part].Show(e))
			}
			return true
		})
		if more {
			return true
		}
	}
	return false
}
