// SPDX-License-Identifier: Apache-2.0

package objects_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/test/clitest"
)

func TestLabelsAreSetRemovedAndListed(t *testing.T) {
	startHubWithPlant(t)
	for _, c := range []struct {
		line, out, errs string
		code            int
	}{
		{line: "label device lamp floor=one", out: "device/lamp labeled\n"},
		{line: "label device/lamp floor=one", out: "device/lamp not labeled\n"},
		{line: "label device lamp floor=two", errs: `"floor" already has the value "one": --overwrite changes it`, code: exitcode.Refused},
		{line: "label device lamp floor=two --dry-run --overwrite", out: "device/lamp labeled (dry run)\n"},
		{line: "label device lamp floor=two --dry-run=server --overwrite", out: "device/lamp labeled (dry run)\n"},
		{line: "label device lamp --list", out: "floor=one\nroom=hall\n"},
		{line: "label device lamp floor=two side=left --overwrite --list", out: "device/lamp labeled\nfloor=two\nroom=hall\nside=left\n"},
		{line: "label device lamp floor- side- none-", out: "device/lamp unlabeled\n", errs: "label \"none\" not found.\n"},
		{line: "label device lamp none-", out: "device/lamp not labeled\n"},
		{line: "label devices -l room=hall checked=yes", out: "device/lamp labeled\n"},
		{line: "label nodes --all checked=yes", out: "node/n1 labeled\n"},
		{line: "label devices -l room=none checked=no", errs: "no object is selected\n"},
		{line: "label device/lamp node/n1 owner=ann", out: "device/lamp labeled\nnode/n1 labeled\n"},
		{line: "annotate device lamp note=here", out: "device/lamp annotated\n"},
		{line: "annotate device lamp --list", out: "note=here\n"},
		{line: "annotate device lamp note-", out: "device/lamp unannotated\n"},
		{line: "label device lamp a=b --resource-version 1", errs: "metadata.resourceVersion: it is ", code: exitcode.Refused},
		{line: "label device lamp bad=a:b", errs: "a:b", code: exitcode.Refused},
		{line: "label device lmp a=b", errs: "lamp", code: exitcode.NotFound},
		{line: "label device lamp", errs: "KEY=VALUE", code: exitcode.Misused},
		{line: "label a=b", errs: "which objects", code: exitcode.Misused},
		{line: "label devices a=b", errs: "--all", code: exitcode.Misused},
		{line: "label device lamp a=b a-", errs: "once", code: exitcode.Misused},
		{line: "label device lamp a=b lamp2", errs: "lamp2", code: exitcode.Misused},
		{line: "label device lamp a=b --all", errs: "said twice", code: exitcode.Misused},
	} {
		out, errs := clitest.Run(t, c.code, strings.Split(c.line, " ")...)
		require.Equal(t, c.out, out, c.line)
		require.Contains(t, errs, c.errs, c.line)
	}
	manifest := clitest.WriteFile(t, t.TempDir(), "plant.yaml", clitest.Plant)
	out, _ := clitest.Run(t, 0, "label", "-f", manifest, "from=file")
	require.Equal(t, 3, strings.Count(out, " labeled\n"))
}
