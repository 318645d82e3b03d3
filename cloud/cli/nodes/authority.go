// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/printer"
)

// authority is one of the hub's as the hub shows it.
type authority struct {
	Fingerprint string `json:"fingerprint"`
	Expires     string `json:"expires"`
	Until       string `json:"until"`
	SignsNodes  bool   `json:"signsNodes"`
	SignsHub    bool   `json:"signsHub"`
	Certificate string `json:"certificate"`
}

func newAuthority() *cobra.Command {
	var o access.Hub
	var output string
	cmd := &cobra.Command{
		Use:   "authority",
		Short: "Show the hub's certificate authority, or rotate it",
		Long: `Show the certificate authorities that the hub trusts. With -o pem their certificates are printed, for --ca of other programs
and for link.tls.ca of nodes that don't join.

A browser or a phone trusts the hub's page when the authority that signs "hub" is imported there: give it the file that -o pem
prints, and compare the fingerprint that it shows with the one that stands here. With a certificate of your own, which browsers
trust already, in http.tls.cert and http.tls.key of hub.yaml nothing needs to be imported.

` + exitcode.Help,
		Example: "  edgebus authority\n  edgebus authority -o pem > ca.pem\n  edgebus authority rotate",
		Args:    cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var list []authority
		if err := o.Get(cmd.Context(), "/enroll/authority", &list); err != nil {
			return err
		}
		return showAuthorities(cmd, list, output)
	}
	o.Register(cmd)
	printer.OutputFlag(cmd, &output, "", "table", "json", "pem")
	cmd.AddCommand(newRotate())
	return cmd
}

func showAuthorities(cmd *cobra.Command, list []authority, output string) error {
	if output == "pem" {
		for _, a := range list {
			fmt.Fprint(cmd.OutOrStdout(), a.Certificate)
		}
		return nil
	}
	rows := [][]string{{"FINGERPRINT", "SIGNS", "EXPIRES", "TRUSTED UNTIL"}}
	for _, a := range list {
		var signs []string
		if a.SignsHub {
			signs = append(signs, "hub")
		}
		if a.SignsNodes {
			signs = append(signs, "nodes")
		}
		rows = append(rows, []string{a.Fingerprint, strings.Join(signs, ","), a.Expires, a.Until})
	}
	return printer.Rows(cmd.OutOrStdout(), output, list, rows)
}

func newRotate() *cobra.Command {
	var o access.Hub
	var overlap string
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Make a new authority in the place of the present one",
		Long: `Make a new authority, which signs nodes' certificates from now on. The old one is trusted for as long as --overlap says, and
signs the hub's own certificate until then: a node learns the new authority when it renews its certificate. A node that
does not renew it in that time has to join again.

` + exitcode.Help,
		Example: "  edgebus authority rotate",
		Args:    cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var list []authority
		if err := o.Post(cmd.Context(), "/enroll/authority/rotate", map[string]string{"overlap": overlap}, &list); err != nil {
			return err
		}
		return showAuthorities(cmd, list, "table")
	}
	o.Register(cmd)
	cmd.Flags().StringVar(&overlap, "overlap", "", "how long the old one is trusted (default: as long as a node's certificate is valid)")
	return cmd
}
