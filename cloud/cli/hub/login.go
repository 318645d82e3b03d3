// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/signin"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics/resource"
)

func newLogin() *cobra.Command {
	var name, caHash string
	var given signin.Provider
	cmd := &cobra.Command{
		Use:   "login",
		Short: "Sign in at the hub's OpenID Connect provider",
		Long: `Sign in at the hub's OpenID Connect provider, with a browser on any device, and keep the token in the current context: edgebus
and kubectl sign in with it. The hub says which provider that is (auth.oidc), unless flags do.

A token that expires is renewed by the next edgebus command if the provider gives a refresh token, which many do for the scope
offline_access. kubectl uses the renewed one.

` + exitcode.Help,
		Example: "  edgebus context set plant --server https://hub.example.org:8443 --use\n  edgebus login --ca-hash sha256:1f3c…\n  edgebus login --client-secret-file secret --scopes openid,email,groups,offline_access",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			k, err := access.ReadKubeconfig()
			if err != nil {
				return err
			}
			name = cmp.Or(name, os.Getenv("EDGEBUS_CONTEXT"), k.CurrentContext)
			if name == "" {
				return exitcode.Errorf(exitcode.Misused, "there is no context to keep the token in: edgebus context set NAME --server https://hub.example.org:8443 --use")
			}
			if caHash != "" {
				err := access.ChangeKubeconfig(func(now *access.Kubeconfig) error {
					k = now
					return now.PinAuthority(cmd.Context(), name, caHash)
				})
				if err != nil {
					return err
				}
			}
			return login(cmd, k, name, given)
		},
	}
	f := cmd.Flags()
	f.StringVar(&name, "context", "", "the context to sign in for (default: the current one)")
	_ = cmd.RegisterFlagCompletionFunc("context", access.CompleteContexts)
	f.StringVar(&caHash, "ca-hash", "", access.CAHashUsage)
	f.StringVar(&given.Issuer, "issuer", "", "URL of the provider (default: the hub's auth.oidc.issuer)")
	f.StringVar(&given.ClientID, "client-id", "", "the client at the provider (default: the hub's auth.oidc.audience)")
	f.StringVar(&given.ClientSecretFile, "client-secret-file", "", "file that holds the client's secret, if it has one")
	f.StringVar(&given.CA, "issuer-ca", "", "file with the certificates of the authorities that sign the provider's certificate (default: the system's)")
	f.StringSliceVar(&given.Scopes, "scopes", nil, "what to ask the provider for (default openid,email,profile,groups,offline_access, as far as it knows them)")
	return cmd
}

// login gets a token of the provider, tries it at the hub, and keeps it in the context.
func login(cmd *cobra.Command, k *access.Kubeconfig, name string, given signin.Provider) error {
	ctx := cmd.Context()
	p, err := k.TargetOf(name)
	if err != nil {
		return err
	}
	if p.Username != "" {
		return exitcode.Errorf(exitcode.Refused, "the context %s signs in with a password: make another one for the token (edgebus context set NAME --server %s)", name, p.Server)
	}
	p.Token, p.TokenFile = "", ""
	o, err := p.APIOptions()
	if err != nil {
		return err
	}
	how, err := chooseProvider(ctx, o, p, given)
	if err != nil {
		return err
	}
	text, err := how.SignIn(ctx, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	o.Token = text.ID
	who, err := whoAmI(ctx, o)
	if err != nil {
		return err
	}
	how.RefreshToken = text.Refresh
	if err := access.ChangeKubeconfig(func(k *access.Kubeconfig) error { return k.StoreToken(name, text.ID, how) }); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "signed in for the context %s as %s, until %s\n", name, terminal.Printable(who, 300), resource.FormatTime(text.Expires))
	if how.RefreshToken == "" {
		fmt.Fprintln(cmd.ErrOrStderr(), "the provider gave no refresh token: run edgebus login again then")
	}
	return nil
}

// chooseProvider finds the provider: by the flags, or else from the hub. Its other settings from the last login are kept.
func chooseProvider(ctx context.Context, o client.Options, p access.Target, given signin.Provider) (how signin.Provider, err error) {
	last := p.Login
	how = given
	if how.Issuer == "" || how.ClientID == "" {
		hub, err := client.New(o)
		if err != nil {
			return how, exitcode.Errorf(exitcode.Misused, "%w", err)
		}
		defer hub.Close()
		var said signin.Provider
		err = hub.Get(ctx, "/auth/oidc", &said)
		if errors.Is(err, resource.NotFound) {
			return how, exitcode.Errorf(exitcode.Refused, "%w: give --issuer and --client-id, or a certificate, password or token to the context", err)
		}
		if err != nil {
			return how, err
		}
		how.Issuer, how.ClientID = cmp.Or(how.Issuer, said.Issuer), cmp.Or(how.ClientID, said.ClientID)
	}
	for _, file := range []*string{&how.ClientSecretFile, &how.CA} {
		if *file != "" {
			if *file, err = filepath.Abs(*file); err != nil {
				return how, err
			}
		}
	}
	if last.Issuer == how.Issuer && last.ClientID == how.ClientID {
		how.ClientSecretFile, how.CA = cmp.Or(how.ClientSecretFile, last.ClientSecretFile), cmp.Or(how.CA, last.CA)
		if len(how.Scopes) == 0 {
			how.Scopes = last.Scopes
		}
	}
	return how, nil
}

// whoAmI asks the hub for the user of the credentials, and for the user's roles.
func whoAmI(ctx context.Context, o client.Options) (string, error) {
	hub, err := client.New(o)
	if err != nil {
		return "", exitcode.Errorf(exitcode.Misused, "%w", err)
	}
	defer hub.Close()
	var review struct {
		Status struct {
			UserInfo struct {
				Username string
				Groups   []string
				Extra    struct{ Nodes []string }
			}
		}
	}
	if err := hub.Post(ctx, "/apis/authentication.k8s.io/v1/selfsubjectreviews", struct{}{}, &review); err != nil {
		return "", fmt.Errorf("the provider accepted the login, and the hub did not: %w", err)
	}
	who := review.Status.UserInfo
	text := who.Username + " (" + strings.Join(who.Groups, ", ")
	if len(who.Extra.Nodes) > 0 {
		text += " of the nodes " + strings.Join(who.Extra.Nodes, ", ")
	}
	return text + ")", nil
}
