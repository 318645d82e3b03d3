// SPDX-License-Identifier: Apache-2.0

package mqtt

import (
	"regexp"
	"strings"
)

// valueTemplate is what is understood of a template of Home Assistant's that reads a value.
type valueTemplate struct {
	path string // in JSON; empty: the payload
	// words are the texts that the template makes, each with what the device says for it; empty: the device says the texts themselves. Unknown
	// are words that stand for everything else.
	words map[string]string
}

const (
	jsonPattern   = `value_json((?:\.\w+|\['[^'\]]+'\]|\["[^"\]]+"\]|\[\d+\]|\.get\('[^']+'(?:, *\w+)?\)|\.get\("[^"]+"(?:, *\w+)?\))+)`
	filterPattern = `(?:\|\s*(?:is_defined|float|int|string|trim|(?:float|int|round|default|d)\([^()|]*\))\s*)*`
	textPattern   = `['"]?([^'"{}%]*?)['"]?`
)

var (
	rawTemplate  = regexp.MustCompile(`^\{\{-?\s*value\s*` + filterPattern + `-?\}\}$`)
	pathTemplate = regexp.MustCompile(`^\{\{-?\s*` + jsonPattern + `\s*` + filterPattern + `-?\}\}$`)
	// One of two words, by a condition: as an expression, and as statements.
	wordTemplate = regexp.MustCompile(`^\{\{-?\s*\(?` + textPattern + `\s+if\s+(.+?)\s+else\s+` + textPattern + `\s*\)?\s*-?\}\}$`)
	ifTemplate   = regexp.MustCompile(`^\{%-?\s*if\s+(.+?)\s*-?%\}\s*` + textPattern + `\s*\{%-?\s*else\s*-?%\}\s*` + textPattern + `\s*\{%-?\s*endif\s*-?%\}$`)
	condition    = regexp.MustCompile(`^(not\s+)?(?:` + jsonPattern + `|value)\s*` + filterPattern + `(?:(==|!=|is)\s*['"]?([^'"]*?)['"]?)?$`)
	getCall      = regexp.MustCompile(`\.get\((['"][^'"]+['"])(?:, *\w+)?\)`)

	valueInCommand = regexp.MustCompile(`\{\{-?\s*value\s*((?:\|\s*(?:float|int|string|trim|tojson|to_json|(?:float|int|round)\([^()|]*\))\s*)*)-?\}\}`)
)

// parseTemplate reads a template as far as a mapper can do what it does. ok is false for one that does more, or something else.
func parseTemplate(text string) (t valueTemplate, ok bool) {
	text = strings.TrimSpace(text)
	if text == "" || rawTemplate.MatchString(text) {
		return t, true
	}
	if m := pathTemplate.FindStringSubmatch(text); m != nil {
		return valueTemplate{path: jsonPath(m[1])}, true
	}
	if m := wordTemplate.FindStringSubmatch(text); m != nil {
		return parseConditional(m[2], m[1], m[3])
	}
	if m := ifTemplate.FindStringSubmatch(text); m != nil {
		return parseConditional(m[1], m[2], m[3])
	}
	return t, false
}

// parseConditional reads a template that makes one text if a condition holds, and another one if it doesn't.
func parseConditional(test, yes, no string) (t valueTemplate, ok bool) {
	m := condition.FindStringSubmatch(strings.Trim(strings.TrimSpace(test), "()"))
	if m == nil || yes == no {
		return t, false
	}
	word, other := strings.TrimSpace(m[4]), ""
	switch {
	case m[3] == "":
		word, other = "true", "false"
	case m[3] == "is" && !strings.EqualFold(word, "true") && !strings.EqualFold(word, "false"):
		return t, false
	default:
		word = pythonWord(word)
		other = oppositeWords[word]
	}
	if (m[1] != "") != (m[3] == "!=") { // not, or !=
		yes, no = no, yes
	}
	return valueTemplate{jsonPath(m[2]), map[string]string{yes: word, no: other}}, true
}

// oppositeWords are the words of which a device that doesn't say one says the other.
var oppositeWords = func() map[string]string {
	out := map[string]string{}
	for _, pair := range []string{"true false", "ON OFF", "on off", "On Off", "1 0", "online offline", "Online Offline", "open closed", "OPEN CLOSED", "yes no"} {
		a, b, _ := strings.Cut(pair, " ")
		out[a], out[b] = b, a
	}
	return out
}()

// pythonWord is what JSON has for a word of Python.
func pythonWord(word string) string {
	if word == "True" || word == "False" {
		return strings.ToLower(word)
	}
	return word
}

// jsonPath is what comes after value_json, as mapper-mqtt has paths.
func jsonPath(text string) string {
	return strings.TrimPrefix(getCall.ReplaceAllString(text, "[$1]"), ".")
}

// says is what the device says for a word of the template; ok is false if that isn't one word.
func (t valueTemplate) says(word string) (said string, ok bool) {
	if t.words == nil {
		if t.path != "" {
			word = pythonWord(word)
		}
		return word, true
	}
	said = t.words[word]
	return said, said != ""
}

// commandPayload is a template for commands as mapper-mqtt has it. ok is false for one that does more, or has no value in it, unless constant.
func commandPayload(text string, constant bool) (payload string, ok bool) {
	if strings.TrimSpace(text) == "" {
		return "{value}", true
	}
	payload = valueInCommand.ReplaceAllStringFunc(text, func(found string) string {
		if strings.Contains(found, "json") {
			return "{json}"
		}
		return "{value}"
	})
	return payload, (payload != text || constant) && !strings.Contains(payload, "{{") && !strings.Contains(payload, "{%")
}
