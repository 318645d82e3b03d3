// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

func TestAHistoryIsLinearizableOrNot(t *testing.T) {
	write := func(value string, call, end int64) Operation {
		return Operation{Write: true, Value: value, Call: call, Return: end}
	}
	read := func(value string, call, end int64) Operation { return Operation{Value: value, Call: call, Return: end} }
	const never = 1 << 62
	for name, c := range map[string]struct {
		ops   []Operation
		wrong bool
	}{
		"in order":                    {ops: []Operation{read("", 1, 2), write("a", 3, 4), read("a", 5, 6)}},
		"during a write either":       {ops: []Operation{write("a", 1, 2), write("b", 3, 8), read("a", 4, 5), read("b", 6, 7)}},
		"an unknown write may come":   {ops: []Operation{write("a", 1, never), write("b", 2, 3), read("b", 4, 5), read("a", 6, 7)}},
		"a value goes backwards":      {ops: []Operation{write("a", 1, 2), write("b", 3, 8), read("b", 4, 5), read("a", 6, 7)}, wrong: true},
		"an acknowledged one is lost": {ops: []Operation{write("a", 1, 2), write("b", 3, 4), read("a", 5, 6)}, wrong: true},
		"a value of nobody":           {ops: []Operation{write("a", 1, 2), read("x", 3, 4)}, wrong: true},
	} {
		why := check(c.ops)
		if (why != "") != c.wrong {
			t.Errorf("%s: %q", name, why)
		}
		if c.wrong && !strings.Contains(why, "not linearizable") {
			t.Errorf("%s: %q", name, why)
		}
	}
}
