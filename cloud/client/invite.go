// SPDX-License-Identifier: Apache-2.0

package client

import (
	"cmp"
	"context"
	"strings"
)

// InvitationRequest asks the hub to let nodes join.
type InvitationRequest struct {
	Node       string            `json:"node"` // a name, or a pattern of names
	Labels     map[string]string `json:"labels,omitempty"`
	NodeLabels []string          `json:"nodeLabels,omitempty"` // keys of labels that the node may choose itself
	Uses       int               `json:"uses,omitempty"`
	TTL        string            `json:"ttl,omitempty"`
	Replace    bool              `json:"replace,omitempty"` // the node takes the place of one that has joined by this name
}

// Invitation is the hub's answer, with the token, which is shown this once.
type Invitation struct {
	ID      string `json:"id"`
	Token   string `json:"token"`
	Hub     string `json:"hub"`
	Expires string `json:"expires"`
}

// Invite makes an invitation.
func (c *Client) Invite(ctx context.Context, r InvitationRequest) (a Invitation, err error) {
	err = c.Post(ctx, "/enroll/invitations", r, &a)
	return a, err
}

// JoinCommand is the command line with which an invited node joins.
func (r InvitationRequest) JoinCommand(a Invitation) string {
	line := "edgecore join " + cmp.Or(a.Hub, "HUB:8883") + " --token " + a.Token
	if strings.ContainsAny(r.Node, "*?[") {
		line += " --name NAME"
	}
	return line
}
