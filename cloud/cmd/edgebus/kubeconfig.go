package main

import (
	"cmp"
	"encoding/base64"
	"os"

	"github.com/spf13/cobra"
)

func newKubeconfig() *cobra.Command {
	var h hub
	var embed bool
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print a configuration for kubectl",
		Long: `Print a kubeconfig with which kubectl, k9s and everything else that is made for Kubernetes talks to
the hub: the address, namespace, certificates and user of a context, or of flags. A user's password
is in it, for kubectl reads none from a file: keep it as safe as that. kubectl sends it over https only.

On the hub's own machine kubectl needs none if its HTTP port is 8080.`,
		Example: "  edgebus kubeconfig > edgebus.kubeconfig\n  kubectl --kubeconfig edgebus.kubeconfig get devices",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := h.place()
			if err == nil {
				err = p.check()
			}
			if err != nil {
				return err
			}
			config, err := p.kubeconfig(cmp.Or(h.context, "edgebus"), embed)
			if err != nil {
				return err
			}
			return printDocument(cmd.OutOrStdout(), "yaml", config)
		},
	}
	h.placeFlags(cmd)
	cmd.Flags().BoolVar(&embed, "embed", false, "put the certificates and the key into it, instead of their files' names")
	return cmd
}

// kubeconfig is a place as kubectl wants it.
func (p place) kubeconfig(name string, embed bool) (map[string]any, error) {
	cluster, user := map[string]any{"server": p.Server}, map[string]any{}
	for _, file := range []struct {
		to          map[string]any
		field, path string
	}{{cluster, "certificate-authority", p.CA}, {user, "client-certificate", p.Cert}, {user, "client-key", p.Key}} {
		switch {
		case file.path == "":
		case embed:
			text, err := os.ReadFile(file.path)
			if err != nil {
				return nil, err
			}
			file.to[file.field+"-data"] = base64.StdEncoding.EncodeToString(text)
		default:
			file.to[file.field] = file.path
		}
	}
	if p.User != "" {
		password, err := p.identity().Secret()
		if err != nil {
			return nil, err
		}
		user["username"], user["password"] = p.User, password
	}
	return map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": name,
		"clusters": []any{map[string]any{"name": name, "cluster": cluster}},
		"users":    []any{map[string]any{"name": name, "user": user}},
		"contexts": []any{map[string]any{
			"name": name, "context": map[string]any{"cluster": name, "user": name, "namespace": p.Namespace},
		}},
	}, nil
}
