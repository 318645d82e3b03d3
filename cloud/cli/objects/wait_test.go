// SPDX-License-Identifier: Apache-2.0

package objects_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/cli"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/test/clitest"
)

// While one waits, the change is made by another command; --timeout 0s says what is so now.
func TestWaitEndsWhenAnObjectIsAsItShouldBe(t *testing.T) {
	startHubWithPlant(t)
	dir := t.TempDir()
	conditions := func(status string) []string {
		return []string{"apply", "-f", clitest.WriteFile(t, dir, "event.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, labels: {a: b}}\ndata: {value: '"+status+"'}\n")}
	}
	clitest.Run(t, 0, conditions("one")...)
	for _, c := range []struct {
		wait, out string
		change    []string // nil: it is so already
	}{
		{wait: "configmap c --for jsonpath={.data.value}=one", out: "configmap/c condition met\n"},
		{wait: "configmap/c --for jsonpath=.data.value", out: "configmap/c condition met\n"},
		{wait: "configmap c --for jsonpath='{.data.value}'=two", out: "configmap/c condition met\n", change: conditions("two")},
		{wait: "configmaps -l a=b --for jsonpath={.metadata.labels.x}", out: "configmap/c condition met\n", change: []string{"label", "configmap", "c", "x=y"}},
		{wait: "device/fan --for create", out: "device/fan created\n", change: []string{"apply", "-f", clitest.WriteFile(t, dir, "fan.yaml", strings.ReplaceAll(clitest.Plant, "name: lamp", "name: fan"))}},
		{wait: "device/fan --for create", out: "device/fan created\n"},
		{wait: "device/fan --for=delete", out: "device/fan deleted\n", change: []string{"delete", "device", "fan"}},
		{wait: "device/fan --for=delete", out: "device/fan deleted\n"},
	} {
		args := append([]string{"wait"}, strings.Split(c.wait, " ")...)
		var out, errs bytes.Buffer
		ended := make(chan int, 1)
		if c.change != nil {
			_, early := clitest.Run(t, exitcode.Failed, append(args, "--timeout", "0s")...)
			require.Contains(t, early, "not ", c.wait)
		}
		go func() { ended <- cli.Run(append(args, "--timeout", "1m"), &out, &errs) }()
		if c.change != nil {
			clitest.Run(t, 0, c.change...)
		}
		require.Equal(t, 0, <-ended, "%s: %s", c.wait, &errs)
		require.Equal(t, c.out, out.String(), c.wait)
	}
}

func TestWaitSaysWhyItDoesNotEndWell(t *testing.T) {
	startHubWithPlant(t)
	for _, c := range []struct {
		line, errs string
		code       int
	}{
		{"wait device/lamp --for condition=Online --timeout 50ms", `device/lamp: not "condition met" after 50ms`, exitcode.TimedOut},
		{"wait device/lamp --for delete --timeout 50ms", `device/lamp: not "deleted" after 50ms`, exitcode.TimedOut},
		{"wait device/lmp --for condition=Online", "lamp", exitcode.NotFound},
		{"wait devices -l a=none --for condition=Online", "no object is selected", exitcode.NotFound},
		{"wait device lamp", "condition=TYPE", exitcode.Misused},
		{"wait device lamp --for condition=", "condition=TYPE", exitcode.Misused},
		{"wait device lamp --for jsonpath={.a", "jsonpath='{.status.state}'=online", exitcode.Misused},
		{"wait device lamp --for ready", "condition=TYPE", exitcode.Misused},
		{"wait devices --for delete", "--all", exitcode.Misused},
	} {
		if c.code == exitcode.TimedOut { // a busy machine may not get as far as that in so short a time
			line, _, _ := strings.Cut(c.line, " --timeout")
			clitest.RunWithMoreTime(t, c.code, strings.Split(c.errs, " after")[0], strings.Split(line, " ")...)
			continue
		}
		_, errs := clitest.Run(t, c.code, strings.Split(c.line, " ")...)
		require.Contains(t, errs, c.errs, c.line)
	}
}
