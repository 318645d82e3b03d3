// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"cmp"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/printer"
)

// Commands are those for a hub.
func Commands() []*cobra.Command {
	return []*cobra.Command{newContext(), newKubeconfig(), newLogin(), newToken(), newSession(), newUser(), newPasswd(), newCheck(), newBackup(), newRestore(), newFollow(), newTakeover(), newCluster()}
}

func newContext() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "context",
		Short: "Remember hubs by name, and choose the current one",
		Long: `A context is a name for a hub: its addresses, a namespace, and a certificate, a user or a token. Contexts are kept in a
kubeconfig, so kubectl has the same ones: the file ~/.kube/config, or the files that $KUBECONFIG lists.
edgebus keeps the hub's MQTT address in an extension of the cluster (` + access.MQTTExtension + `), which kubectl leaves alone.

A command talks to --server, else $EDGEBUS_SERVER, else the context that --context or $EDGEBUS_CONTEXT name, else the
current one, else http://127.0.0.1:8080.

A context's certificate and password are for the addresses that it names. Another address is sent only credentials that
are given with it.`,
		Example: "  edgebus context set plant --server https://hub.example.org:8443 --ca ca.pem --cert ann.pem --key ann.key --use\n" +
			"  edgebus context set plant --server https://hub.example.org:8443 --ca-hash sha256:1f3c… --token-file ann.token --use\n" +
			"  edgebus context list\n  edgebus get devices --context plant\n  kubectl get devices --context plant",
	}
	cmd.AddCommand(newContextSet(), newContextUse(), newContextList(), newContextDelete())
	return cmd
}

func newContextSet() *cobra.Command {
	var a access.Flags
	var use bool
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Add a context, or change parts of one",
		Long: `Add a context, or change what the flags name: of the context, and of its cluster and user (by default those of the
same name). Everything else in the kubeconfig stays as it is. Certificates and keys are kept by their files' names; the password
is copied from its file, because kubectl reads none from a file. Only you can read the kubeconfig.

With --ca-hash no file has to be brought from the hub: the hub is asked for its authority's certificate, which is kept in the kubeconfig
if it has that fingerprint. edgebus authority prints the fingerprint on the hub.

If there is no current context, this one becomes it.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: access.CompleteContexts,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.CheckAddresses(); err != nil {
				return err
			}
			return access.ChangeKubeconfig(func(k *access.Kubeconfig) error {
				if use || k.CurrentContext == "" {
					k.CurrentContext = args[0]
				}
				return a.StoreContext(cmd, k, args[0])
			})
		},
	}
	a.RegisterCredentials(cmd, "server", "mqtt")
	a.RegisterNamespace(cmd)
	cmd.Flags().StringVar(&a.CAHash, "ca-hash", "", access.CAHashUsage)
	cmd.Flags().BoolVar(&use, "use", false, "make it the current context")
	return cmd
}

func newContextUse() *cobra.Command {
	return &cobra.Command{
		Use:               "use NAME",
		Short:             "Make a context the current one",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: access.CompleteContexts,
		RunE:              changeContext(func(k *access.Kubeconfig, name string) { k.CurrentContext = name }),
	}
}

func newContextList() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List contexts; the current one is marked *",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			k, err := access.ReadKubeconfig()
			if err != nil {
				return err
			}
			rows := [][]string{{"", "NAME", "SERVER", "MQTT", "NAMESPACE"}}
			for _, name := range k.ContextNames() {
				p, err := k.TargetOf(name)
				if err != nil {
					printer.Warn(cmd.ErrOrStderr(), err.Error())
				}
				mark := ""
				if name == k.CurrentContext {
					mark = "*"
				}
				rows = append(rows, []string{mark, name, p.Server, p.MQTT, p.Namespace})
			}
			return new(printer.AlignedRows).Write(cmd.OutOrStdout(), rows)
		},
	}
}

func newContextDelete() *cobra.Command {
	return &cobra.Command{
		Use:               "delete NAME",
		Short:             "Delete a context, and its cluster and user if no other context has them",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: access.CompleteContexts,
		RunE:              changeContext((*access.Kubeconfig).DeleteContext),
	}
}

// changeContext changes the kubeconfig for a context that it has.
func changeContext(change func(k *access.Kubeconfig, name string)) func(*cobra.Command, []string) error {
	return func(_ *cobra.Command, args []string) error {
		return access.ChangeKubeconfig(func(k *access.Kubeconfig) error {
			if k.Contexts[args[0]] == nil {
				return k.ErrNoContext(args[0])
			}
			change(k, args[0])
			return nil
		})
	}
}

func newKubeconfig() *cobra.Command {
	var a access.Flags
	var embed bool
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print a kubeconfig of one hub, to be given away",
		Long: `Print a kubeconfig that has one context: the current one, or what flags say. It is for another place: here kubectl
has edgebus' contexts without it. A user's password is in it: keep it as safe as that. kubectl sends it over https only.`,
		Example: "  edgebus kubeconfig --context plant --embed > plant.kubeconfig\n  kubectl --kubeconfig plant.kubeconfig get devices",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := a.Resolve()
			if err == nil {
				err = p.Validate()
			}
			if err != nil {
				return err
			}
			config, err := p.Kubeconfig(cmp.Or(a.Context, "edgebus"), embed)
			if err == nil {
				_, err = cmd.OutOrStdout().Write(config)
			}
			return err
		},
	}
	a.Register(cmd, "server", "")
	a.RegisterNamespace(cmd)
	cmd.Flags().BoolVar(&embed, "embed", false, "put the certificates and the key into it, instead of their files' names")
	return cmd
}
