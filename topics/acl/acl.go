// SPDX-License-Identifier: Apache-2.0

// Package acl says which of the users' own topics a user may publish and subscribe to: by lists of filters for one user, by
// patterns for all users, and by files in the format of mosquitto's acl_file.
//
// It knows nothing of the tree below v1/nodes, whose rights follow from roles and the topic table.
package acl

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/edgebus/edgebus/topics"
)

// Access is what a rule gives.
type Access uint8

// A rule gives Read (subscribe and receive), Write (publish), or both; Deny takes both away and comes before all others.
const (
	Read Access = 1 << iota
	Write
	Deny
)

// rule gives access to the topics that a filter matches. In filters of patterns, and only in these, the levels %u and %c stand
// for the user name and the client identifier.
type rule struct {
	access  Access
	levels  []string
	literal bool // a topic line of a file, in which %u and %c stand for nothing
}

// Rules are all rules of a broker. The zero value has none, and allows everything; as soon as there is one, a topic that none
// allows is denied.
type Rules struct {
	users     map[string][]rule
	patterns  []rule
	anonymous []rule
	lists     map[string]map[Access][]rule // of users; they replace all other rules for that access
	all       bool                         // rules apply to all users
}

// Client is whose rights are asked for.
type Client struct{ User, ID string }

// Limit lists the filters that one user may publish to (Write) or subscribe to (Read), and nothing else: no other rule
// counts for that access of that user. The levels %u and %c stand for the user name and the client identifier. An empty
// list gives no right at all.
func (r *Rules) Limit(user string, access Access, filters []string) error {
	list := make([]rule, 0, len(filters))
	for _, filter := range filters {
		if err := checkFilter(filter); err != nil {
			return err
		}
		list = append(list, rule{access: access, levels: strings.Split(filter, "/")})
	}
	if r.lists == nil {
		r.lists = make(map[string]map[Access][]rule)
	}
	if r.lists[user] == nil {
		r.lists[user] = make(map[Access][]rule)
	}
	r.lists[user][access] = list
	return nil
}

func (r *Rules) add(user string, one rule) {
	if r.users == nil {
		r.users = make(map[string][]rule)
	}
	r.users[user] = append(r.users[user], one)
}

func checkFilter(filter string) error {
	if err := topics.CheckFilter(filter); err != nil {
		return err
	}
	if topics.IsTree(filter) {
		return fmt.Errorf("filter %q: rights in the tree below %s follow from the role", filter, topics.Prefix)
	}
	for level := range strings.SplitSeq(filter, "/") {
		if level != "%u" && level != "%c" && (strings.Contains(level, "%u") || strings.Contains(level, "%c")) {
			return fmt.Errorf("filter %q: %%u and %%c stand for a whole level", filter)
		}
	}
	return nil
}

// ReadFile reads a file in mosquitto's format.
func (r *Rules) ReadFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	if err := r.Parse(f); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// Parse reads rules in mosquitto's format, one a line:
//
//	user <name>
//	topic [read|write|readwrite|deny] <filter>
//	pattern [read|write|readwrite|deny] <filter>
//
// A topic line belongs to the user line before it, or to anonymous clients when there is none; a pattern line to all
// users. An error names every line that is not understood.
func (r *Rules) Parse(text io.Reader) error {
	r.all = true
	var errs []error
	user, named := "", false
	lines := bufio.NewScanner(text)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		word, rest, _ := strings.Cut(line, " ")
		rest = strings.TrimSpace(rest)
		var err error
		switch word {
		case "user":
			if user, named = rest, true; rest == "" {
				err = errors.New("user without a name")
			}
		case "topic", "pattern":
			err = r.parseRule(word == "pattern", user, named, rest)
		default:
			err = fmt.Errorf("%.40q is none of user, topic and pattern", word)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("line %d: %w", n, err))
		}
	}
	return errors.Join(append(errs, lines.Err())...)
}

var accessWords = map[string]Access{"read": Read, "write": Write, "readwrite": Read | Write, "deny": Deny}

func (r *Rules) parseRule(pattern bool, user string, named bool, rest string) error {
	one := rule{access: Read | Write}
	filter := rest
	if word, after, more := strings.Cut(rest, " "); more {
		if access, ok := accessWords[word]; ok {
			one.access, filter = access, strings.TrimSpace(after)
		}
	}
	if filter == "" {
		return errors.New("a topic or pattern without a filter")
	}
	if topics.IsTree(filter) {
		return nil // mosquitto's files may say what they like of it: roles decide there
	}
	if err := topics.CheckFilter(filter); err != nil {
		return err
	}
	one.levels, one.literal = strings.Split(filter, "/"), !pattern
	switch {
	case pattern:
		if err := checkFilter(filter); err != nil {
			return err
		}
		r.patterns = append(r.patterns, one)
	case !named:
		r.anonymous = append(r.anonymous, one)
	default:
		r.add(user, one)
	}
	return nil
}

// Applies reports whether a user's rights of that access are limited at all.
func (r *Rules) Applies(user string, access Access) bool {
	return r != nil && (r.all || r.lists[user][access] != nil)
}

// Allowed reports whether a client may publish to a topic (Write) or receive what is published there (Read).
func (r *Rules) Allowed(c Client, access Access, topic string) bool {
	if !r.Applies(c.User, access) {
		return true
	}
	allowed := false
	for _, rules := range r.of(c, access) {
		for _, one := range rules {
			if one.access&(access|Deny) != 0 && one.matches(c, topic) {
				if one.access&Deny != 0 {
					return false
				}
				allowed = true
			}
		}
	}
	return allowed
}

// MaySubscribe reports whether a client may read at least one of the topics that a filter matches. Which of them it receives is
// what Allowed says of each.
func (r *Rules) MaySubscribe(c Client, filter string) bool {
	if !r.Applies(c.User, Read) {
		return true
	}
	levels := strings.Split(filter, "/")
	allowed := false
	for _, rules := range r.of(c, Read) {
		for _, one := range rules {
			mine := one.forClient(c)
			switch {
			case mine == nil:
			case one.access&Deny != 0:
				if filterCovers(mine, levels) {
					return false
				}
			case one.access&Read != 0 && filtersOverlap(mine, levels):
				allowed = true
			}
		}
	}
	return allowed
}

// of are the rules that decide on an access of a client: the user's list if there is one, or else the user's rules and the
// patterns.
func (r *Rules) of(c Client, access Access) [2][]rule {
	if list := r.lists[c.User][access]; list != nil {
		return [2][]rule{list}
	}
	own := r.users[c.User]
	if c.User == "" {
		own = r.anonymous
	}
	return [2][]rule{own, r.patterns}
}

// forClient is the rule's filter with the client's names in it; nil: it can't concern the client, which has no name or one
// that would be a wildcard or several levels.
func (o rule) forClient(c Client) []string {
	if o.literal {
		return o.levels
	}
	var mine []string
	for i, level := range o.levels {
		name := c.User
		switch level {
		case "%c":
			name = c.ID
		case "%u":
		default:
			continue
		}
		if name == "" || strings.ContainsAny(name, "+#/") {
			return nil
		}
		if mine == nil {
			mine = append(mine, o.levels...)
		}
		mine[i] = name
	}
	if mine == nil {
		return o.levels
	}
	return mine
}

func (o rule) matches(c Client, topic string) bool {
	mine := o.forClient(c)
	if mine == nil || strings.HasPrefix(topic, "$") != strings.HasPrefix(mine[0], "$") {
		return false
	}
	for i, level := range mine {
		if level == "#" {
			return true
		}
		first, rest, more := strings.Cut(topic, "/")
		if level != "+" && level != first {
			return false
		}
		if !more {
			return i == len(mine)-1 || i == len(mine)-2 && mine[i+1] == "#"
		}
		topic = rest
	}
	return false
}

// filtersOverlap reports whether there is a topic that both filters match.
func filtersOverlap(a, b []string) bool {
	if strings.HasPrefix(a[0], "$") != strings.HasPrefix(b[0], "$") {
		return false
	}
	for i := 0; ; i++ {
		switch {
		case i < len(a) && a[i] == "#", i < len(b) && b[i] == "#":
			return true
		case i == len(a) || i == len(b):
			return len(a) == len(b)
		case a[i] != "+" && b[i] != "+" && a[i] != b[i]:
			return false
		}
	}
}

// filterCovers reports whether wide matches every topic that filter matches.
func filterCovers(wide, filter []string) bool {
	if strings.HasPrefix(wide[0], "$") != strings.HasPrefix(filter[0], "$") {
		return false
	}
	for i := 0; ; i++ {
		switch {
		case i < len(wide) && wide[i] == "#":
			return true
		case i == len(wide) || i == len(filter):
			return len(wide) == len(filter)
		case filter[i] == "#" || wide[i] != "+" && wide[i] != filter[i]:
			return false
		}
	}
}
