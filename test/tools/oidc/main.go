// SPDX-License-Identifier: Apache-2.0

// Command oidc-provider is an OpenID Connect provider for tests: zitadel's library with its in-memory storage. People are
// ann (groups plant-admins and everybody) and bob (everybody); the password of both is "verysecure". Its client for the device
// flow is edgebus, with the secret "secret"; with --redirect there is also the client page, for browsers, with the same secret.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"

	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"
)

// people are the users, by name; each one's ID is the name.
type people map[string][]string

func (p people) GetUserByID(id string) *storage.User {
	if _, ok := p[id]; !ok {
		return nil
	}
	return &storage.User{ID: id, Username: id, Password: "verysecure", Email: id + "@example.org", EmailVerified: true}
}

func (p people) GetUserByUsername(name string) *storage.User { return p.GetUserByID(name) }

func (people) ExampleClientID() string { return storage.ServiceUserID }

// withGroups adds the claim "groups" to ID tokens, and the user's name.
type withGroups struct {
	*storage.Storage
	people people
}

func (s withGroups) SetUserinfoFromRequest(ctx context.Context, u *oidc.UserInfo, r op.IDTokenRequest, scopes []string) error {
	if err := s.Storage.SetUserinfoFromRequest(ctx, u, r, scopes); err != nil {
		return err
	}
	u.PreferredUsername = r.GetSubject()
	u.AppendClaims("groups", s.people[r.GetSubject()])
	return nil
}

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address; port 0 takes a free one")
	file := flag.String("issuer-file", "", "file that gets the issuer's URL once it listens")
	redirect := flag.String("redirect", "", "address that browsers of the client page are led back to")
	flag.Parse()
	if err := run(*listen, *file, *redirect); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(listen, file, redirect string) error {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	issuer := "http://" + l.Addr().String()
	if err := os.WriteFile(file, []byte(issuer), 0o644); file != "" && err != nil {
		return err
	}
	p := people{"ann": {"plant-admins", "everybody"}, "bob": {"everybody"}}
	clients := map[string]*storage.Client{"edgebus": storage.DeviceClient("edgebus", "secret")}
	if redirect != "" {
		clients["page"] = storage.WebClient("page", "secret", redirect)
	}
	s := withGroups{storage.NewStorageWithClients(p, clients), p}
	return http.Serve(l, exampleop.SetupServer(issuer, s, slog.New(slog.DiscardHandler), false))
}
