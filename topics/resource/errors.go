// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/topics"
)

// ErrorKind classifies an error by what its receiver can do about it. Each protocol maps a kind to its own code in one place:
// an HTTP status in the API, an MQTT reason code in the broker.
type ErrorKind string

// The kinds of error.
const (
	Invalid       ErrorKind = "Invalid"       // the value breaks a rule: correct it and send it again
	BadTopic      ErrorKind = "BadTopic"      // there is no such topic
	NotFound      ErrorKind = "NotFound"      // there is no such object
	AlreadyExists ErrorKind = "AlreadyExists" // an object of this name exists
	Conflict      ErrorKind = "Conflict"      // the object has changed meanwhile: read it again
	Unauthorized  ErrorKind = "Unauthorized"  // the credentials are missing or wrong
	Forbidden     ErrorKind = "Forbidden"     // the client's role may not do this
	TooLarge      ErrorKind = "TooLarge"      // a size limit is exceeded
	Quota         ErrorKind = "Quota"         // a configured number is exceeded
	Gone          ErrorKind = "Gone"          // the revision is too old: list again
	Unavailable   ErrorKind = "Unavailable"   // not possible now: try again later
	Internal      ErrorKind = "Internal"      // a fault of the program or its host
)

// Cause is one broken rule and the field that breaks it.
type Cause struct {
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
}

// Error is an error with a kind, and with the field and the rule that explain it.
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

// Errorf returns an error of a kind. field may be empty.
func Errorf(kind ErrorKind, field, format string, args ...any) *Error {
	return &Error{Kind: kind, Field: field, Message: fmt.Sprintf(format, args...)}
}

// KindOf returns the kind of the first *Error in the chain, and Internal for any other error.
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

// causeList are the broken rules of an object, so that its author sees them all at once. At most maxProblems are kept, because
// a hostile object may break a hundred thousand.
type causeList []Cause

const maxProblems = 20

func (p *causeList) add(field, format string, args ...any) {
	switch n := len(*p); {
	case n < maxProblems:
		*p = append(*p, Cause{field, fmt.Sprintf(format, args...)})
	case n == maxProblems:
		*p = append(*p, Cause{Message: "and more"})
	}
}

func (p *causeList) tooMany(field string, n int) {
	if n > maxListed {
		p.add(field, "has %d entries; at most %d are taken", n, maxListed)
	}
}

func (p *causeList) addErr(field string, err error) {
	var e *Error
	if errors.As(err, &e) {
		p.add(field, "%s", e.Message)
	} else if err != nil {
		p.add(field, "%s", err.Error())
	}
}

// err returns nil if no rule was broken. The causes are sorted by field, because maps are checked in random order.
func (p causeList) err() error {
	slices.SortStableFunc(p[:min(len(p), maxProblems)], func(a, b Cause) int { return strings.Compare(a.Field, b.Field) })
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

// clipText quotes a value and shortens a long one, for logs and messages.
func clipText(s string) string {
	if len(s) > 80 {
		return fmt.Sprintf("%.80q… (%d bytes)", s, len(s))
	}
	return fmt.Sprintf("%q", s)
}

// Grammars of values that are passed to programs on a node's host. A text that matches has no meaning to a shell, is not taken
// for an option, and names no file in another directory.
var (
	// versionForm is Semantic Versioning 2.0.0, with or without a leading v. Versions of one or two numbers, such as v1.10, match too.
	versionForm = regexp.MustCompile(`^v?(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*)){0,2}(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$`)
	// imageForm is a reference to an OCI image: registry and port, path, tag, digest. All but the path are optional.
	imageForm = regexp.MustCompile(`^((localhost|[A-Za-z0-9][A-Za-z0-9-]*(\.[A-Za-z0-9][A-Za-z0-9-]*)+)(:[0-9]{1,5})?/|[A-Za-z0-9][A-Za-z0-9-]*:[0-9]{1,5}/)?` +
		`[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?$`)
	// commandForm is a command and its arguments, separated by single blanks.
	commandForm = regexp.MustCompile(`^[A-Za-z0-9/][A-Za-z0-9._/+-]*( [A-Za-z0-9._/+:=,@%-]+)*$`)
	// revisionForm is a branch, a tag or a commit.
	revisionForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/@+-]*$`)
)

const (
	maxVersion  = 128
	maxImage    = 512
	maxCommand  = 1024
	maxRevision = 256
)

// checkForm checks a text against a grammar. An empty text is valid.
func checkForm(p *causeList, field, text string, form *regexp.Regexp, most int, rule string) {
	if text != "" && (len(text) > most || !form.MatchString(text)) {
		p.add(field, "%s: must be %s, of at most %d characters", clipText(text), rule, most)
	}
}

func checkVersion(p *causeList, field, text string) {
	checkForm(p, field, text, versionForm, maxVersion, "a version such as v1.10.0 or 1.10.0-rc.1 (Semantic Versioning)")
}

func checkImage(p *causeList, field, text string) {
	checkForm(p, field, text, imageForm, maxImage, "a reference to an image, such as quay.io/org/name:1.0 or name@sha256:…")
}

func checkCommand(p *causeList, field, text string) {
	checkForm(p, field, text, commandForm, maxCommand,
		"a command and its arguments between single blanks, of letters, digits and ._/+:=,@%-: no shell reads it")
}

func checkRevision(p *causeList, field, text string) {
	checkForm(p, field, text, revisionForm, maxRevision, "a branch, tag or commit, of letters, digits and ._/@+-, beginning with a letter or digit")
	if strings.Contains(text, "..") {
		p.add(field, "%s: a revision has no two dots in a row", clipText(text))
	}
}

func checkOneOf[T ~string](p *causeList, field, value string, allowed []T) {
	if slices.Contains(allowed, T(value)) {
		return
	}
	var names []string
	for _, a := range allowed {
		if a != "" {
			names = append(names, string(a))
		}
	}
	p.add(field, "%s is not one of %s", clipText(value), strings.Join(names, ", "))
}

// checkUnchanged adds a problem if the JSON of two values differs.
func checkUnchanged(p *causeList, field string, a, b any) {
	before, errA := json.Marshal(a)
	after, errB := json.Marshal(b)
	if errA != nil || errB != nil || string(before) != string(after) {
		p.add(field, "can't be changed: it is immutable")
	}
}

// uniqueNames are the names in a list, to find those that occur twice.
type uniqueNames map[string]bool

func (n uniqueNames) check(p *causeList, field, name string) {
	if n[name] {
		p.add(field, "%s occurs twice in the list", clipText(name))
	}
	n[name] = true
}

func checkRequired(p *causeList, field, value string) {
	if value == "" {
		p.add(field, "is required")
	}
}

// checkName checks the name of another object to which a field refers.
func checkName(p *causeList, field, name string) {
	switch {
	case name == "":
		p.add(field, "is required")
	case !topics.ValidName(name):
		p.add(field, "%s: must be %s", clipText(name), topics.NameRule())
	}
}
