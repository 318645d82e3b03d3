// SPDX-License-Identifier: Apache-2.0

// Package settings makes the views that a hub's or a core's settings switch on. It is where the broker's side meets package configs, for both
// programs have the same views, and neither may know the other.
//
// It never decides what a view publishes.
package settings

import (
	"encoding/json"
	"fmt"

	"github.com/edgebus/edgebus/broker/views"
	"github.com/edgebus/edgebus/broker/views/homeassistant"
	"github.com/edgebus/edgebus/broker/views/runner"
	"github.com/edgebus/edgebus/broker/views/sparkplug"
	"github.com/edgebus/edgebus/broker/views/uns"
	"github.com/edgebus/edgebus/configs"
)

// The names of views, as their users view-{name} have them.
const (
	homeAssistant    = "homeassistant"
	unifiedNamespace = "uns"
	edgeNodes        = "sparkplug"
)

// Open makes the views that are switched on, and clears what others have left. It sets Restore of the options.
func Open(o runner.Options, v configs.Views) (*runner.Views, error) {
	o.Restore = func(name string, settings json.RawMessage) (runner.View, error) {
		return restoreView(name, settings, o.Node)
	}
	var list []runner.View
	for _, one := range []struct {
		name     string
		enabled  bool
		settings any
	}{
		{homeAssistant, v.HomeAssistant.Enabled, v.HomeAssistant},
		{unifiedNamespace, v.UNS.Enabled, v.UNS},
		{edgeNodes, v.Sparkplug.Enabled, v.Sparkplug},
	} {
		if !one.enabled {
			continue
		}
		text, err := json.Marshal(one.settings)
		if err != nil {
			return nil, err
		}
		view, err := o.Restore(one.name, text)
		if err != nil {
			return nil, err
		}
		list = append(list, view)
	}
	return runner.New(o, list)
}

// restoreView makes a view of the settings that it has, or once had, on a node; on the hub, which has no node's name, of all nodes.
func restoreView(name string, settings json.RawMessage, node string) (v runner.View, err error) {
	v = runner.View{Name: name, Settings: settings}
	var p configs.ViewPeer
	switch name {
	case homeAssistant:
		var h configs.HomeAssistant
		err = json.Unmarshal(settings, &h)
		p, v.Place = h.ViewPeer, h.Server+" "+h.Prefix+" "+h.Topic
		v.New = func(string) views.View {
			return homeassistant.New(homeassistant.Options{Instance: node, Prefix: h.Prefix, Base: h.Topic, Own: h.Server == ""})
		}
	case unifiedNamespace:
		var u configs.UnifiedNamespace
		err = json.Unmarshal(settings, &u)
		p, v.Place = u.ViewPeer, u.Server+" "+u.Root
		origin := "view-uns/" + node
		if node == "" {
			origin += "hub"
		}
		v.New = func(string) views.View {
			return uns.New(uns.Options{Levels: uns.PathLevels{Root: u.Root, Labels: u.Levels, Name: u.Name}, JSON: u.JSON, Origin: origin})
		}
	case edgeNodes:
		var s configs.Sparkplug
		err = json.Unmarshal(settings, &s)
		p, v.Place, v.PerNode = s.ViewPeer, s.Server+" "+s.Group, true
		v.New = func(node string) views.View {
			return sparkplug.New(sparkplug.Options{Group: s.Group, EdgeNode: node, PrimaryHost: s.PrimaryHost, Aliases: s.Aliases})
		}
	default:
		err = fmt.Errorf("this program has no view %.100q", name)
	}
	if err != nil {
		return v, err
	}
	v.Selects = views.SelectLabels(p.Labels)
	v.Peer = runner.Peer{Server: p.Server, User: p.User, Secret: p.Secret(), ClientID: p.ClientID}
	if p.TLS.CA != "" {
		v.Peer.Roots = p.TLS.Roots()
	}
	v.Peer.TLS, err = p.TLS.Config()
	return v, err
}
