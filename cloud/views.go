// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	"encoding/json"
	"fmt"
	"net"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/history/requests"
	"github.com/edgebus/edgebus/broker/views"
	"github.com/edgebus/edgebus/broker/views/homeassistant"
	"github.com/edgebus/edgebus/broker/views/runner"
	"github.com/edgebus/edgebus/broker/views/sparkplug"
	"github.com/edgebus/edgebus/broker/views/uns"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics/resource"
)

// openViews makes the views of all nodes' Devices that are switched on, and clears what others have left.
func openViews(
	cfg configs.Hub, dial func(broker.Identity) net.Conn, retained func(filter string) func(max int) []broker.Message,
	find func(ctx context.Context, node, device string) (resource.Bundle, requests.Source, error), record func(resource.Occurrence), log zerolog.Logger,
) (*runner.Views, error) {
	var list []runner.View
	if h := cfg.Views.HomeAssistant; h.Enabled {
		v, err := homeAssistantView(h)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	if u := cfg.Views.UNS; u.Enabled {
		v, err := unsView(u)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	if s := cfg.Views.Sparkplug; s.Enabled {
		v, err := sparkplugView(s)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return runner.New(runner.Options{
		Dir: cfg.Data.Dir, Dial: dial, Retained: retained, Past: runner.PastOf(find), Log: log,
		Rejected: func(view string, d *views.Device, reason string) {
			m := d.Object.Metadata
			record(resource.Occurrence{
				Kind: resource.KindDevice, Namespace: m.Namespace, Name: m.Name, UID: m.UID, Type: resource.EventWarning, Reason: "NotShown", About: view,
				Message: "the view " + view + " can't show it: " + reason,
			})
		},
		Restore: func(name string, settings json.RawMessage) (runner.View, error) { return restoreView(name, settings) },
	}, list)
}

// restoreView makes a view of the settings that it once had.
func restoreView(name string, settings json.RawMessage) (v runner.View, err error) {
	switch name {
	case homeAssistant:
		var h configs.HomeAssistant
		if err := json.Unmarshal(settings, &h); err != nil {
			return v, err
		}
		return homeAssistantView(h)
	case unifiedNamespace:
		var u configs.UnifiedNamespace
		if err := json.Unmarshal(settings, &u); err != nil {
			return v, err
		}
		return unsView(u)
	case edgeNodes:
		var s configs.Sparkplug
		if err := json.Unmarshal(settings, &s); err != nil {
			return v, err
		}
		return sparkplugView(s)
	}
	return v, fmt.Errorf("this program has no view %.100q", name)
}

// The names of views, as their users view-{name} have them.
const (
	homeAssistant    = "homeassistant"
	unifiedNamespace = "uns"
	edgeNodes        = "sparkplug"
)

func homeAssistantView(h configs.HomeAssistant) (runner.View, error) {
	settings, err := json.Marshal(h)
	if err != nil {
		return runner.View{}, err
	}
	peer, err := viewPeer(h.ViewPeer)
	o := homeassistant.Options{Prefix: h.Prefix, Base: h.Topic, Own: h.Server == ""}
	return runner.View{
		Name: homeAssistant, Peer: peer, Settings: settings, Place: h.Server + " " + h.Prefix + " " + h.Topic, Selects: views.SelectLabels(h.Labels),
		New: func(string) views.View { return homeassistant.New(o) },
	}, err
}

func unsView(u configs.UnifiedNamespace) (runner.View, error) {
	settings, err := json.Marshal(u)
	if err != nil {
		return runner.View{}, err
	}
	peer, err := viewPeer(u.ViewPeer)
	o := uns.Options{Levels: uns.PathLevels{Root: u.Root, Labels: u.Levels, Name: u.Name}, JSON: u.JSON, Origin: "view-uns/hub"}
	return runner.View{
		Name: unifiedNamespace, Peer: peer, Settings: settings, Place: u.Server + " " + u.Root, Selects: views.SelectLabels(u.Labels),
		New: func(string) views.View { return uns.New(o) },
	}, err
}

func sparkplugView(s configs.Sparkplug) (runner.View, error) {
	settings, err := json.Marshal(s)
	if err != nil {
		return runner.View{}, err
	}
	peer, err := viewPeer(s.ViewPeer)
	return runner.View{
		Name: edgeNodes, PerNode: true, Peer: peer, Settings: settings, Place: s.Server + " " + s.Group, Selects: views.SelectLabels(s.Labels),
		New: func(node string) views.View {
			return sparkplug.New(sparkplug.Options{Group: s.Group, EdgeNode: node, PrimaryHost: s.PrimaryHost, Aliases: s.Aliases})
		},
	}, err
}

// viewPeer is the broker of a view.
func viewPeer(p configs.ViewPeer) (peer runner.Peer, err error) {
	peer = runner.Peer{Server: p.Server, User: p.User, Secret: p.Secret(), ClientID: p.ClientID}
	if p.TLS.CA != "" {
		peer.Roots = p.TLS.Roots()
	}
	peer.TLS, err = p.TLS.Config()
	return peer, err
}
