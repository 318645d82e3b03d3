// SPDX-License-Identifier: Apache-2.0

package acl

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"
	"time"
)

// User has lists of filters. A list that is nil is none: what the user may do is as the file says, and without one as the
// role has it.
type User struct {
	Name               string
	Publish, Subscribe Filters
}

// Filters of topics. Nil is none given, which is not the same as an empty list.
type Filters []string

// IsZero reports whether they are left out of YAML.
func (f Filters) IsZero() bool { return f == nil }

// Options are what rules are made of.
type Options struct {
	Users []User
	File  string // in mosquitto's format; empty: there is none
	// Reread is told that the file was read again, and why it is not in force; it may be nil.
	Reread func(err error)
	// Every is how often the file is looked at. 0: every second.
	Every time.Duration
}

// ActiveRules has the rules in force. The file is read again after it has changed; while it can't be read or is wrong, the rules
// that were read before stay.
type ActiveRules struct {
	opts   Options
	rules  atomic.Pointer[Rules]
	failed atomic.Pointer[string]
	read   fileState // of the file that was read last, Run's
}

// Open reads the rules.
func Open(o Options) (*ActiveRules, error) {
	if o.Every == 0 {
		o.Every = time.Second
	}
	if o.Reread == nil {
		o.Reread = func(error) {}
	}
	s := &ActiveRules{opts: o}
	s.read, _ = fileStateOf(o.File) // ReadFile says what is wrong
	r, err := s.load()
	if err != nil {
		return nil, err
	}
	s.rules.Store(r)
	return s, nil
}

func (s *ActiveRules) load() (*Rules, error) {
	r := new(Rules)
	for _, u := range s.opts.Users {
		for access, filters := range map[Access]Filters{Write: u.Publish, Read: u.Subscribe} {
			if filters == nil {
				continue
			}
			if err := r.Limit(u.Name, access, filters); err != nil {
				return nil, fmt.Errorf("user %q: %w", u.Name, err)
			}
		}
	}
	if s.opts.File == "" {
		return r, nil
	}
	if err := r.ReadFile(s.opts.File); err != nil {
		return nil, fmt.Errorf("auth.topics: %w", err)
	}
	return r, nil
}

// Rules are the rules in force.
func (s *ActiveRules) Rules() *Rules { return s.rules.Load() }

// Failing says why the file as it is now is not in force; empty: it is.
func (s *ActiveRules) Failing() string {
	if text := s.failed.Load(); text != nil {
		return *text
	}
	return ""
}

// HasFile says whether there is a file that rules are read from.
func (s *ActiveRules) HasFile() bool { return s.opts.File != "" }

// Run reads the file again when it has changed, and calls changed when there are other rules. It takes a file that has not
// changed between two looks, since half of a file may give more than all of it.
func (s *ActiveRules) Run(ctx context.Context, changed func()) error {
	if s.opts.File == "" {
		<-ctx.Done()
		return nil
	}
	ticks := time.NewTicker(s.opts.Every)
	defer ticks.Stop()
	seen := s.read
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
		now, err := fileStateOf(s.opts.File)
		settled := now == seen
		if seen = now; !settled || now == s.read && s.Failing() == "" {
			continue
		}
		rules, loadErr := s.load()
		if after, _ := fileStateOf(s.opts.File); after != now && err == nil {
			continue // it is being written
		}
		s.take(rules, loadErr, now, changed)
	}
}

// take has rules in force that were read, or notes why there are none. What is wrong is told once for each change.
func (s *ActiveRules) take(rules *Rules, err error, at fileState, changed func()) {
	if err != nil {
		if text := err.Error(); s.read != at || s.Failing() != text {
			s.failed.Store(&text)
			s.opts.Reread(err)
		}
		s.read = at
		return
	}
	s.read = at
	s.failed.Store(nil)
	s.rules.Store(rules)
	changed()
	s.opts.Reread(nil)
}

// fileState tells one state of a file from another.
type fileState struct {
	size    int64
	changed time.Time
	mode    fs.FileMode
}

func fileStateOf(name string) (fileState, error) {
	info, err := os.Stat(name)
	if err != nil {
		return fileState{}, err
	}
	return fileState{info.Size(), info.ModTime(), info.Mode()}, nil
}
