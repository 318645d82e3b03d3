// SPDX-License-Identifier: Apache-2.0

// linearizable checks histories of registers with porcupine: FILE has one operation a line, as Operation is written in JSON. It ends with 0 if each
// register's history is linearizable, and with 1 and a register whose history isn't, up to the operation with which it wasn't any more.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// Operation is a read or a write of a register. A write whose outcome nobody knows has no return; a read that came to nothing is no operation.
type Operation struct {
	Key    string `json:"key"`
	Client int    `json:"client"`
	Write  bool   `json:"write"`
	Value  string `json:"value"` // empty: the register has none
	Call   int64  `json:"call"`  // both in nanoseconds, by one clock
	Return int64  `json:"return"`
	By     string `json:"by,omitempty"` // which hub, or interface
}

var register = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		if op := input.(Operation); op.Write {
			return true, op.Value
		}
		return state == output, state
	},
	DescribeOperation: func(input, output any) string {
		if op := input.(Operation); op.Write {
			return fmt.Sprintf("write %s", op.Value)
		}
		return fmt.Sprintf("read %s", output)
	},
}

const checkTime = 30 * time.Second // for a register

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: linearizable FILE")
		os.Exit(2)
	}
	histories, err := load(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "linearizable:", err)
		os.Exit(2)
	}
	for _, key := range slices.Sorted(maps.Keys(histories)) {
		if why := check(histories[key]); why != "" {
			fmt.Printf("%s: %s\n", key, why)
			os.Exit(1)
		}
	}
}

func load(file string) (map[string][]Operation, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all := map[string][]Operation{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var op Operation
		if err := json.Unmarshal(lines.Bytes(), &op); err != nil {
			return nil, err
		}
		if op.Return == 0 {
			op.Return = math.MaxInt64
		}
		all[op.Key] = append(all[op.Key], op)
	}
	return all, nil
}

// check says what is wrong with a history.
func check(ops []Operation) string {
	ops = withoutUnseen(ops)
	ok, known := isLinearizable(ops)
	if ok {
		return ""
	}
	if !known {
		return fmt.Sprintf("%d operations could not be checked within %s", len(ops), checkTime)
	}
	ends := slices.Clone(ops)
	slices.SortFunc(ends, func(a, b Operation) int { return cmp.Compare(a.Return, b.Return) })
	at, _ := slices.BinarySearchFunc(ends, true, func(end Operation, _ bool) int {
		if ok, _ := isLinearizable(until(ops, end.Return)); !ok {
			return 1
		}
		return -1
	})
	last := ends[min(at, len(ends)-1)]
	text := fmt.Sprintf("not linearizable with the operation that ended at %d:\n", last.Return)
	shown := until(ops, last.Return)
	for _, op := range shown[max(0, len(shown)-40):] {
		line, _ := json.Marshal(op)
		text += string(line) + "\n"
	}
	return text
}

// withoutUnseen sorts operations by their calls, without writes of unknown outcome whose value nobody has read. The history is linearizable with them if, and
// only if, it is without: nothing is read between such a write and the next one, so that it can be left out. Each of them would double what porcupine tries.
func withoutUnseen(ops []Operation) []Operation {
	read := map[string]bool{}
	for _, op := range ops {
		read[op.Value] = read[op.Value] || !op.Write
	}
	ops = slices.DeleteFunc(slices.Clone(ops), func(op Operation) bool { return op.Write && op.Return == math.MaxInt64 && !read[op.Value] })
	slices.SortFunc(ops, func(a, b Operation) int { return cmp.Compare(a.Call, b.Call) })
	return ops
}

// until is the history up to a moment: what had not ended is a write that may have happened.
func until(ops []Operation, end int64) (list []Operation) {
	for _, op := range ops {
		switch {
		case op.Return <= end:
			list = append(list, op)
		case op.Call <= end && op.Write:
			op.Return = math.MaxInt64
			list = append(list, op)
		}
	}
	return list
}

func isLinearizable(ops []Operation) (ok, known bool) {
	history := make([]porcupine.Operation, len(ops))
	for i, op := range ops {
		history[i] = porcupine.Operation{ClientId: op.Client, Input: op, Output: op.Value, Call: op.Call, Return: op.Return}
	}
	result := porcupine.CheckOperationsTimeout(register, history, checkTime)
	return result == porcupine.Ok, result != porcupine.Unknown
}
