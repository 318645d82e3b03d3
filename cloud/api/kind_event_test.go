package api

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	coreEvents = "/api/v1/namespaces/default/events"
	newEvents  = "/apis/events.k8s.io/v1/namespaces/default/events"
)

func TestAnEventHasTwoForms(t *testing.T) {
	h := newHub(t)
	h.ok("POST", coreEvents, `{"metadata":{"name":"lamp.1"},"involvedObject":{"kind":"Device","name":"lamp","uid":"u1"},
		"reason":"Refused","message":"Jammed","type":"Warning","count":3,"reportingComponent":"cloudhub"}`)
	got := h.ok("GET", newEvents+"/lamp.1", "")
	require.Equal(t, "events.k8s.io/v1", got.str("apiVersion"))
	require.Equal(t, "lamp", got.str("regarding.name"))
	require.Equal(t, "Jammed", got.str("note"))
	require.Equal(t, "cloudhub", got.str("reportingController"))
	require.EqualValues(t, 3, got.at("deprecatedCount"))
	require.Nil(t, got.at("involvedObject"))

	h.ok("PATCH", newEvents+"/lamp.1", `{"note":"mended"}`, "Content-Type", mergePatch)
	got = h.ok("GET", coreEvents+"/lamp.1", "")
	require.Equal(t, "mended", got.str("message"))
	require.Nil(t, got.at("note"))
	r := h.do("POST", newEvents+"?fieldValidation=Strict", `{"metadata":{"name":"x"},"regarding":{"name":"lamp"},"type":"Odd"}`)
	require.Equal(t, 422, r.code, r.body)
}

func TestEventsAreChosenByWhatTheyAreAbout(t *testing.T) {
	h := newHub(t)
	for _, o := range []string{
		`{"metadata":{"name":"a"},"involvedObject":{"kind":"Device","namespace":"default","name":"lamp","uid":"u1"},"reason":"Bound","type":"Normal"}`,
		`{"metadata":{"name":"b"},"involvedObject":{"kind":"Device","namespace":"default","name":"fan","uid":"u2"},"reason":"Refused","type":"Warning"}`,
		`{"metadata":{"name":"c"},"involvedObject":{"kind":"Node","name":"n1","uid":"u3"},"reason":"Left","type":"Warning"}`,
	} {
		h.ok("POST", coreEvents, o)
	}
	for selector, want := range map[string]string{
		"involvedObject.name=lamp,involvedObject.namespace=default,involvedObject.kind=Device,involvedObject.uid=u1": "a",
		"involvedObject.kind=Node,involvedObject.namespace=":                                                         "c",
		"type!=Normal,involvedObject.kind=Device":                                                                    "b",
		"reason=Left": "c",
	} {
		list := h.ok("GET", "/api/v1/events?fieldSelector="+selector, "")
		require.Len(t, list.at("items"), 1, selector)
		require.Equal(t, want, list.str("items.0.metadata.name"), selector)
	}
	list := h.ok("GET", newEvents+"?fieldSelector=regarding.name=fan,type=Warning", "")
	require.Len(t, list.at("items"), 1)
	require.Equal(t, "fan", list.str("items.0.regarding.name"))
	require.Equal(t, 400, h.do("GET", coreEvents+"?fieldSelector=regarding.name=fan", "").code)
}

// A Node is a Device to flightctl: kubectl describe devices.flightctl.io asks for the Events of a Device with the Node's uid.
func TestEventsAreFoundByWhatAnotherGroupCallsTheirObject(t *testing.T) {
	h := newHub(t)
	uid := h.ok("POST", apiRoot+"/nodes", `{"metadata":{"name":"n1"}}`).str("metadata.uid")
	h.ok("POST", coreEvents, `{"metadata":{"name":"node"},"involvedObject":{"apiVersion":"edgebus.io/v1alpha1","kind":"Node","name":"n1","uid":"`+uid+`"},"reason":"InStep"}`)
	h.ok("POST", coreEvents, `{"metadata":{"name":"device"},"involvedObject":{"kind":"Device","namespace":"default","name":"n1","uid":"u2"},"reason":"Bound"}`)
	for selector, want := range map[string][]string{
		"kind=Device,X.name=n1,X.namespace=,X.uid=" + uid: {"node"},
		"uid=" + uid + ",X.kind=Device":                   {"node"},
		"kind=Node,X.name=n1,X.uid=" + uid:                {"node"},
		"kind=Fleet,X.name=n1,X.uid=" + uid:               nil,
		"kind!=Device,X.uid=" + uid:                       {"node"},
		"kind=Device,X.uid!=" + uid:                       {"device"},
		"kind=Device,X.uid=u2":                            {"device"},
		"kind=Device,X.name=n1":                           {"device"},
		"kind=Device,X.uid=":                              nil,
		// as kubectl events --for asks
		"kind=Device,X.apiVersion=flightctl.io/v1alpha1,X.name=n1": {"node"},
		"kind=Node,X.apiVersion=edgebus.io/v1alpha1,X.name=n1":     {"node"},
		"kind=Device,X.apiVersion=example.org/v1,X.name=n1":        nil,
	} {
		of := strings.ReplaceAll("X."+selector, "X.", "involvedObject.")
		require.Equal(t, want, h.ok("GET", "/api/v1/events?fieldSelector="+of, "").names(), of)
		of = strings.ReplaceAll("X."+selector, "X.", "regarding.")
		require.Equal(t, want, h.ok("GET", "/apis/events.k8s.io/v1/events?fieldSelector="+of, "").names(), of)
	}
}
