package objects

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/client"
)

// completeObjects offers kinds, then names of objects: at most so many arguments, -1 for any number.
func completeObjects(h *access.Hub, most int) access.CompletionFunc {
	return func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		if most >= 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return h.CompleteFromHub(cmd, func(ctx context.Context) []string {
			if len(args) > 0 && !strings.Contains(args[0], "/") {
				return h.ObjectNames(ctx, args[0], "")
			}
			if kind, _, named := strings.Cut(toComplete, "/"); named {
				return h.ObjectNames(ctx, kind, kind+"/")
			}
			all, err := h.Kinds(ctx)
			if err != nil {
				return nil
			}
			var names []string
			for _, k := range client.Canonical(all) {
				names = append(names, k.Plural)
			}
			return names
		})
	}
}
