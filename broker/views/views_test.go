// SPDX-License-Identifier: Apache-2.0

package views_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/views"
	"github.com/edgebus/edgebus/broker/views/viewtest"
)

// plainView publishes each value at plain/{device}/{property}, and the title at plain/{device}. It sets what it gets at set/{device}/{property}.
type plainView struct{}

func (plainView) Connect(n uint64) views.Connection {
	return views.Connection{
		Will:     &views.Message{Topic: "plain/gone", Payload: []byte{'0' + byte(n)}, QoS: 1},
		Filters:  []string{"set/+/+", "again"},
		Retained: []string{"plain/#"},
		Owns:     func(m views.Message) bool { return strings.HasPrefix(m.Topic, "plain/") },
	}
}

func (plainView) Next(_ time.Time, e views.Event) (do []views.Action) {
	say := func(topic, payload string) {
		do = append(do, &views.Publish{Message: views.Message{Topic: topic, Payload: []byte(payload), QoS: 1, Retain: true}})
	}
	switch e := e.(type) {
	case *views.NodeChanged:
		if e.Node.Online {
			say("plain/"+e.Node.Name+"/is", "there")
		}
	case *views.DeviceChanged:
		d := e.Device
		if e.Gone {
			return nil
		}
		if e.Whole {
			say("plain/"+d.Name(), d.Title())
		}
		for _, p := range d.Model.Spec.Properties {
			if v := d.Values[p.Name]; v.Known {
				say("plain/"+d.Name()+"/"+p.Name, v.Text)
			} else {
				say("plain/"+d.Name()+"/"+p.Name, "")
			}
		}
	case *views.Received:
		if e.Message.Topic == "again" {
			return []views.Action{&views.Repeat{}}
		}
		level := strings.Split(e.Message.Topic, "/")
		return []views.Action{&views.Set{Node: viewtest.Node, Device: level[1], Values: map[string]string{level[2]: string(e.Message.Payload)}}}
	case *views.Ending:
		return []views.Action{&views.Publish{Message: views.Message{Topic: "plain/gone", Payload: []byte("end")}}}
	}
	return do
}

func TestATreeCountsTheDevicesThatAreShown(t *testing.T) {
	tree := views.NewTree(viewtest.Node, func(_ views.Node, d *views.Device) bool { return d.State != "hidden" })
	told := map[string]bool{}
	tell := func() {
		for e := tree.Next(); e != nil; e = tree.Next() {
			if d, ok := e.(*views.DeviceChanged); ok {
				if told[d.Device.Name()] = true; d.Gone {
					delete(told, d.Device.Name())
				}
			}
		}
		require.Equal(t, len(told), tree.Devices())
	}
	at := func(name string) string { return "v1/nodes/" + viewtest.Node + "/devices/" + name }
	all := viewtest.Devices()
	for _, b := range all {
		text, err := json.Marshal(b)
		require.NoError(t, err)
		tree.Apply(at(b.Device.Metadata.Name), text, time.Time{})
	}
	require.Zero(t, tree.Devices(), "nothing was told")
	tell()
	require.Len(t, told, len(all))
	tree.Apply(at("lamp")+"/state", []byte("hidden"), time.Time{})
	tree.Apply(at("button"), nil, time.Time{})
	tell()
	require.Len(t, told, len(all)-2)
	tree.Apply(at("lamp")+"/state", []byte("online"), time.Time{})
	tree.Repeat()
	tell()
	require.Len(t, told, len(all)-1)
}

func TestWhatAViewSaysIsToldOnceAndNothingIsLeftOver(t *testing.T) {
	viewtest.Run(t, viewtest.Options{Files: "testdata/*.txt", New: func() views.View { return plainView{} }})
}
