package resource

import (
	"errors"
	"fmt"
	"strings"
)

// ErrorKind classes an error by what its receiver can do about it. Each
// protocol maps a kind to its own code in one place: an HTTP status in the API,
// an MQTT reason code in the broker.
type ErrorKind string

// The kinds of error.
const (
	Invalid       ErrorKind = "Invalid"       // the value breaks a rule: mend it and send it again
	BadTopic      ErrorKind = "BadTopic"      // there is no such topic
	NotFound      ErrorKind = "NotFound"      // there is no such object
	AlreadyExists ErrorKind = "AlreadyExists" // an object has this name already
	Conflict      ErrorKind = "Conflict"      // somebody else changed it first: read it again
	Unauthorized  ErrorKind = "Unauthorized"  // who are you?
	Forbidden     ErrorKind = "Forbidden"     // not yours to write
	TooLarge      ErrorKind = "TooLarge"      // over a size limit
	Quota         ErrorKind = "Quota"         // over a configured number
	Gone          ErrorKind = "Gone"          // too old a revision: list again
	Unavailable   ErrorKind = "Unavailable"   // not now: try again
	Internal      ErrorKind = "Internal"      // ours to mend
)

// Cause is one broken rule and the place that breaks it.
type Cause struct {
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
}

// Error is an error with a kind, and with the field and rule that explain it.
type Error struct {
	Kind    ErrorKind
	Field   string
	Message string
	Causes  []Cause // every broken rule, when there is more than one
}

func (e *Error) Error() string {
	if e.Field == "" {
		return e.Message
	}
	return e.Field + ": " + e.Message
}

// Errorf makes an error of a kind; field may be empty.
func Errorf(kind ErrorKind, field, format string, args ...any) *Error {
	return &Error{Kind: kind, Field: field, Message: fmt.Sprintf(format, args...)}
}

// KindOf is the kind of the first *Error in the chain; Internal for any other error.
func KindOf(err error) ErrorKind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return Internal
}

// Is lets errors.Is(err, resource.NotFound) work through any wrapping.
func (e *Error) Is(target error) bool {
	k, ok := target.(ErrorKind)
	return ok && k == e.Kind
}

// Error makes a kind usable as the target of errors.Is.
func (k ErrorKind) Error() string { return string(k) }

// problems gathers every broken rule of an object, so that its author sees all at once.
// Of a hostile object, which may break a hundred thousand, it gathers maxProblems.
type problems []Cause

const maxProblems = 20

func (p *problems) add(field, format string, args ...any) {
	switch n := len(*p); {
	case n < maxProblems:
		*p = append(*p, Cause{field, fmt.Sprintf(format, args...)})
	case n == maxProblems:
		*p = append(*p, Cause{Message: "and more"})
	}
}

func (p *problems) tooMany(field string, n int) {
	if n > maxListed {
		p.add(field, "has %d entries; at most %d are taken", n, maxListed)
	}
}

func (p *problems) addErr(field string, err error) {
	var e *Error
	if errors.As(err, &e) {
		p.add(field, "%s", e.Message)
	} else if err != nil {
		p.add(field, "%s", err.Error())
	}
}

func (p problems) err() error {
	switch len(p) {
	case 0:
		return nil
	case 1:
		return &Error{Kind: Invalid, Field: p[0].Field, Message: p[0].Message, Causes: p}
	}
	lines := make([]string, len(p))
	for i, c := range p {
		lines[i] = strings.TrimPrefix(c.Field+": "+c.Message, ": ")
	}
	return &Error{Kind: Invalid, Message: strings.Join(lines, "; "), Causes: p}
}

// clip keeps a hostile value from filling logs and reason strings.
func clip(s string) string {
	if len(s) > 80 {
		return fmt.Sprintf("%.80q… (%d bytes)", s, len(s))
	}
	return fmt.Sprintf("%q", s)
}
