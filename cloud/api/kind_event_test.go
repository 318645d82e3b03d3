package api

import (
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
