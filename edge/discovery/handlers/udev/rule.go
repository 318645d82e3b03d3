// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// rule matches a device if all of its terms do. One without terms matches every device.
type rule []ruleTerm

// ruleTerm compares what a device has under a key with a pattern.
type ruleTerm struct {
	key, name string // ATTR and idVendor of ATTR{idVendor}
	not       bool
	pattern   pattern
}

// matchKeys are those of a term: true if they have a name in braces.
var matchKeys = map[string]bool{
	"ATTR": true, "ATTRS": true, "DEVPATH": false, "DRIVER": false, "DRIVERS": false, "ENV": true, "KERNEL": false, "KERNELS": false,
	"SUBSYSTEM": false, "SUBSYSTEMS": false, "TAG": false, "TAGS": false,
}

// assignmentKeys are those of udev that say what to do, or match what is no property of a device.
var assignmentKeys = []string{
	"ACTION", "CONST", "GOTO", "GROUP", "IMPORT", "LABEL", "MODE", "NAME", "OPTIONS", "OWNER", "PROGRAM", "RESULT", "RUN", "SECLABEL",
	"SYMLINK", "SYSCTL", "TEST",
}

var termPattern = regexp.MustCompile(`^([A-Z]+)(\{[^{}"]*\})?\s*(==|!=|\+=|-=|:=|=)\s*"([^"]*)"\s*`)

// parseRule reads a rule such as KERNEL=="video[0-9]*", ATTRS{idVendor}=="1871".
func parseRule(text string) (r rule, err error) {
	rest := strings.TrimSpace(text)
	for rest != "" {
		if len(r) > 0 {
			after, ok := strings.CutPrefix(rest, ",")
			if !ok {
				return nil, fmt.Errorf("a comma is missing before %.60q", rest)
			}
			rest = strings.TrimSpace(after)
		}
		m := termPattern.FindStringSubmatch(rest)
		if m == nil {
			return nil, fmt.Errorf(`%.60q is not KEY=="value" or KEY!="value"`, rest)
		}
		t, err := parseTerm(m[1], m[2], m[3], m[4])
		if err != nil {
			return nil, err
		}
		r, rest = append(r, t), rest[len(m[0]):]
	}
	return r, nil
}

func parseTerm(key, braces, operator, value string) (t ruleTerm, err error) {
	named, known := matchKeys[key]
	name := strings.TrimSpace(strings.Trim(braces, "{}"))
	switch {
	case slices.Contains(assignmentKeys, key):
		return t, fmt.Errorf("%s can't be matched here: the keys are ATTR, ATTRS, DEVPATH, DRIVER, DRIVERS, ENV, KERNEL, KERNELS, SUBSYSTEM, SUBSYSTEMS, TAG and TAGS", key)
	case !known:
		return t, fmt.Errorf("%s is no key of udev", key)
	case named && name == "":
		return t, fmt.Errorf("%s has no name, as %s{name}", key, key)
	case !named && braces != "":
		return t, fmt.Errorf("%s has no name, and %s is given", key, braces)
	case operator != "==" && operator != "!=":
		return t, fmt.Errorf("%s: the operator %s changes a device: only == and != are taken", key, operator)
	}
	t = ruleTerm{key: key, name: name, not: operator == "!="}
	t.pattern, err = parsePattern(value, t.regular())
	if err != nil {
		return t, fmt.Errorf("%s: %w", key, err)
	}
	return t, nil
}

// regular reports whether Akri takes the value for a regular expression, and not for a glob as udev does. Then it may be either.
func (t ruleTerm) regular() bool {
	switch t.key {
	case "ATTR", "SUBSYSTEM":
		return false
	case "KERNEL", "TAG", "ENV", "DEVPATH":
		return t.not
	}
	return true
}

// pattern are globs, of which one must match, or an expression.
type pattern struct {
	globs      []string
	expression *regexp.Regexp // nil: none
}

func parsePattern(value string, regular bool) (p pattern, err error) {
	p.globs = strings.Split(value, "|")
	if regular { // an expression that is none may be a glob
		p.expression, _ = regexp.Compile(`^(?:` + value + `)$`)
	}
	for _, g := range p.globs {
		if _, err := path.Match(g, ""); err != nil && p.expression == nil {
			return p, fmt.Errorf("%.60q is no pattern", value)
		}
	}
	return p, nil
}

// slashReplacer stands for / in globs and values: udev's * matches it as well.
var slashReplacer = strings.NewReplacer("/", "\x01")

func (p pattern) match(value string) bool {
	for _, g := range p.globs {
		if ok, err := path.Match(slashReplacer.Replace(g), slashReplacer.Replace(value)); ok && err == nil {
			return true
		}
	}
	return p.expression != nil && p.expression.MatchString(value)
}

func (r rule) match(d *device) bool {
	return !slices.ContainsFunc(r, func(t ruleTerm) bool { return t.match(d) == t.not })
}

// match reports whether the device, or, for a key that ends in S, it or one of those above it, has a value that matches.
func (t ruleTerm) match(d *device) bool {
	switch t.key {
	case "KERNELS", "SUBSYSTEMS", "DRIVERS", "ATTRS", "TAGS":
		one := ruleTerm{key: strings.TrimSuffix(t.key, "S"), name: t.name, pattern: t.pattern}
		for ; d != nil; d = d.parent() {
			if one.match(d) {
				return true
			}
		}
		return false
	case "TAG":
		return slices.ContainsFunc(d.tags(), t.pattern.match)
	}
	value, ok := d.value(t.key, t.name)
	return ok && t.pattern.match(value)
}
