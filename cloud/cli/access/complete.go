package access

import (
	"cmp"
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/client"
)

// CompletionFunc offers completions of an argument.
type CompletionFunc = func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective)

// completeTime is how long completion waits for the hub without --timeout.
const completeTime = 2 * time.Second

// mostNames bounds the names that completion offers.
const mostNames = 500

// CompleteContexts offers the names of contexts.
func CompleteContexts(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	k, err := ReadKubeconfig()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return k.ContextNames(), cobra.ShellCompDirectiveNoFileComp
}

// CompleteFromHub asks the hub for completions. There are none if it doesn't answer.
func (h *Hub) CompleteFromHub(cmd *cobra.Command, f func(ctx context.Context) []string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.Background(), cmp.Or(h.Timeout, completeTime))
	defer cancel()
	if err := h.open(cmd); err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return f(ctx), cobra.ShellCompDirectiveNoFileComp
}

// ObjectNames are the names of a kind's objects.
func (h *Hub) ObjectNames(ctx context.Context, kind, prefix string) (names []string) {
	k, err := h.Kind(ctx, kind)
	if err != nil {
		return nil
	}
	_, _ = h.List(ctx, k, client.ListOptions{Namespace: h.NamespaceOf(k)}, func(page []client.Object) error {
		for _, o := range page {
			names = append(names, prefix+o.Metadata.Name)
		}
		if len(names) >= mostNames {
			return ErrStopWatch
		}
		return nil
	})
	return names
}
