// SPDX-License-Identifier: Apache-2.0

package objects_test

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/cli"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/test/clitest"
)

func TestEventsAreShownByObjectAndType(t *testing.T) {
	startHubWithPlant(t)
	dir := t.TempDir()
	record := func(name, kind, object, uid, at string) {
		clitest.Run(t, 0, "apply", "-f", clitest.WriteFile(t, dir, name+".yaml", "{apiVersion: v1, kind: Event, metadata: {name: "+name+"}, type: "+kind+", reason: "+name+", message: it is "+name+
			", lastTimestamp: '"+at+"', involvedObject: {kind: Device, namespace: default, name: "+object+", uid: '"+uid+"'}}"))
	}
	object, _ := clitest.Run(t, 0, "get", "device", "lamp", "-o", "json")
	uid := regexp.MustCompile(`"uid": *"([^"]+)"`).FindStringSubmatch(object)[1]
	record("late", "Warning", "lamp", uid, "2026-01-02T00:00:00Z")
	record("early", "Normal", "lamp", uid, "2026-01-01T00:00:00Z")
	record("gone", "Warning", "bulb", "x", "2026-01-01T12:00:00Z")
	record("before", "Normal", "lamp", "of-a-lamp-before", "2026-01-01T00:00:00Z")

	reasons := func(line string) (all []string) {
		out, _ := clitest.Run(t, 0, append([]string{"events"}, strings.Fields(line)...)...)
		require.Regexp(t, `^(NAMESPACE +)?LAST SEEN +TYPE +REASON +OBJECT +MESSAGE\n`, out)
		for _, found := range regexp.MustCompile(`it is (\w+)`).FindAllStringSubmatch(out, -1) {
			all = append(all, found[1])
		}
		return all
	}
	require.Equal(t, []string{"early", "late"}, reasons("--for device/lamp"), "the latest last, and of this lamp only")
	require.Equal(t, []string{"gone"}, reasons("--for device/bulb"), "of an object that is no more")
	require.Equal(t, []string{"gone", "late"}, reasons("--types warning"))
	require.Len(t, reasons("-A"), 4)
	out, _ := clitest.Run(t, 0, "events", "--for", "dev/lamp", "-o", "json")
	require.Contains(t, out, `"kind": "List"`)
	_, errs := clitest.Run(t, 0, "events", "-n", "attic")
	require.Equal(t, "no events in namespace attic\n", errs)
	clitest.Run(t, exitcode.Misused, "events", "--for", "device")
	clitest.Run(t, exitcode.Misused, "events", "--types", "Bad")
	completed, _ := clitest.Run(t, 0, "__complete", "events", "--for", "device/")
	require.Contains(t, completed, "device/lamp\n")
}

func TestEventsAreFollowed(t *testing.T) {
	startHubWithPlant(t)
	path := clitest.WriteFile(t, t.TempDir(), "e.yaml", "{apiVersion: v1, kind: Event, metadata: {name: e}, type: Normal, reason: Seen, message: now, involvedObject: {kind: Device, namespace: default, name: lamp}}")
	seen := make(chan string, 1)
	go func() {
		var out, errs bytes.Buffer
		cli.Run([]string{"events", "--watch", "--timeout", "5s"}, &out, &errs)
		seen <- out.String() + errs.String()
	}()
	clitest.Run(t, 0, "apply", "-f", path)
	require.Regexp(t, `Normal +Seen +device/lamp +now`, <-seen)
}
