// SPDX-License-Identifier: Apache-2.0

package objects_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/test/clitest"
)

func TestDiffShowsWhatApplyWouldChange(t *testing.T) {
	startHubWithPlant(t)
	dir := t.TempDir()
	same := clitest.WriteFile(t, dir, "same.yaml", clitest.Plant)
	out, errs := clitest.Run(t, 0, "diff", "-f", same)
	require.Empty(t, out+errs)

	changed := clitest.WriteFile(t, dir, "changed.yaml", strings.Replace(strings.Replace(clitest.Plant, "brightness: 40", "brightness: 41", 1), "name: n1, labels", "name: n2, labels", 1))
	out, _ = clitest.Run(t, 1, "diff", "-f", changed)
	require.Regexp(t, `(?m)^-    brightness: "?40"?$`, out)
	require.Regexp(t, `(?m)^\+    brightness: "?41"?$`, out)
	require.Contains(t, out, "+  name: n2", "an object that would be new is all there")
	require.NotContains(t, out, "generation", "what differs with each write is no difference")
	require.NotContains(t, out, "status")
	got, _ := clitest.Run(t, 0, "get", "device", "lamp", "-o", "json")
	require.Regexp(t, `"brightness": "?40`, got, "nothing is changed")
	clitest.Run(t, exitcode.NotFound, "get", "node", "n2")

	t.Setenv("KUBECTL_EXTERNAL_DIFF", "diff -q -r")
	out, _ = clitest.Run(t, 1, "diff", "-f", changed)
	require.Contains(t, out, " differ\n")
	t.Setenv("KUBECTL_EXTERNAL_DIFF", "no-such-program")
	_, errs = clitest.Run(t, 2, "diff", "-f", changed)
	require.Contains(t, errs, "diffutils")
}

// What can't be compared is neither 0 nor 1: scripts take these for an answer.
func TestDiffThatFailsEndsWithTwoOrMore(t *testing.T) {
	startHubWithPlant(t)
	dir := t.TempDir()
	for want, line := range map[string][]string{
		"maximum":           {"-f", clitest.WriteFile(t, dir, "a.yaml", strings.Replace(clitest.Plant, "40", "400", 1))},
		"is not YAML":       {"-f", clitest.WriteFile(t, dir, "b.yaml", "a: [\n")},
		"no such file":      {"-f", dir + "/none.yaml"},
		"nothing says what": {},
		"nothing listens":   {"-f", clitest.WriteFile(t, dir, "c.yaml", clitest.Plant), "--server", "http://127.0.0.1:1"},
	} {
		code := map[string]int{"maximum": exitcode.Refused, "is not YAML": exitcode.Refused, "nothing listens": exitcode.Unreachable}[want]
		_, errs := clitest.Run(t, max(code, 2), append([]string{"diff"}, line...)...)
		require.Contains(t, errs, want)
	}
}

func TestDiffNeverShowsASecret(t *testing.T) {
	clitest.StartHub(t)
	dir := t.TempDir()
	secret := func(name, values string) string {
		return clitest.WriteFile(t, dir, name, "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {"+values+"}\n")
	}
	before := secret("a.yaml", "a: first-word, b: second-word")
	out, _ := clitest.Run(t, 1, "diff", "-f", before)
	require.Contains(t, out, "***")
	require.NotContains(t, out, "word")
	require.NotContains(t, out, "Zmlyc3Q")
	clitest.Run(t, 0, "apply", "-f", before)
	out, _ = clitest.Run(t, 1, "diff", "-f", secret("b.yaml", "a: other-word, b: second-word"))
	require.Contains(t, out, "*** (before)")
	require.Contains(t, out, "*** (after)")
	require.NotContains(t, out, "word")
	require.NotContains(t, out, "b3RoZXI")
}
