// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"encoding/json"
	"fmt"
	"net"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/views"
	"github.com/edgebus/edgebus/broker/views/homeassistant"
	"github.com/edgebus/edgebus/broker/views/runner"
	"github.com/edgebus/edgebus/configs"
)

// openViews makes the views of all nodes' Devices that are switched on, and clears what others have left.
func openViews(cfg configs.Hub, dial func(broker.Identity) net.Conn, retained func(filter string) func(max int) []broker.Message, log zerolog.Logger) (*runner.Views, error) {
	var list []runner.View
	if h := cfg.Views.HomeAssistant; h.Enabled {
		v, err := homeAssistantView(h)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return runner.New(runner.Options{
		Dir: cfg.Data.Dir, Dial: dial, Retained: retained, Log: log,
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
	}
	return v, fmt.Errorf("this program has no view %.100q", name)
}

// homeAssistant is the name of the view for Home Assistant, as its user view-homeassistant has it.
const homeAssistant = "homeassistant"

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

// viewPeer is the broker of a view.
func viewPeer(p configs.ViewPeer) (peer runner.Peer, err error) {
	peer = runner.Peer{Server: p.Server, User: p.User, Secret: p.Secret(), ClientID: p.ClientID}
	if p.TLS.CA != "" {
		peer.Roots = p.TLS.Roots()
	}
	peer.TLS, err = p.TLS.Config()
	return peer, err
}
