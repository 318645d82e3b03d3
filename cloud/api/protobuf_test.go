// SPDX-License-Identifier: Apache-2.0

package api

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/edgebus/edgebus/cloud/api/protobuf"
	"github.com/edgebus/edgebus/topics/resource"
)

// encodeProtobuf is an object as kubectl create sends it.
func encodeProtobuf(t testing.TB, apiVersion, kind string, fields ...[]byte) string {
	t.Helper()
	meta, err := (&metav1.ObjectMeta{Name: "a", Labels: map[string]string{"room": "hall"}}).Marshal()
	require.NoError(t, err)
	raw := packedBytes(1, meta)
	for _, f := range fields {
		raw = append(raw, f...)
	}
	wrapped, err := (&runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: apiVersion, Kind: kind}, Raw: raw}).Marshal()
	require.NoError(t, err)
	return "k8s\x00" + string(wrapped)
}

func packedBytes(n protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), value)
}

func packedEntry(n protowire.Number, key, value string) []byte {
	return packedBytes(n, append(packedBytes(1, []byte(key)), packedBytes(2, []byte(value))...))
}

func packedFlag(n protowire.Number) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, n, protowire.VarintType), 1)
}

// A media type is the same in capitals, and with parameters.
func TestMediaTypesAreParsed(t *testing.T) {
	h := newHub(t, withSealer(t))
	const secrets = "/api/v1/namespaces/default/secrets"
	for _, media := range []string{protobuf.MediaType + "; charset=x", "Application/Vnd.Kubernetes.Protobuf"} {
		made := h.do("POST", secrets+"?dryRun=All", encodeProtobuf(t, "v1", "Secret", packedEntry(4, "user", "ann")), "Content-Type", media)
		require.Equal(t, 201, made.code, "%s", made.body)
		require.Equal(t, "YW5u", made.str("data.user"))
		h.refused(400, "BadRequest", "POST", authorizationRoot+"/selfsubjectaccessreviews", "{}", "Content-Type", media)
	}
	h.do("PATCH", namespaceRoot+"/devices/lamp?fieldManager=ann", "apiVersion: edgebus.io/v1alpha1\nkind: Device\nspec: {"+requiredSpec+"}", "Content-Type", applyPatch)
	applied := h.ok("PATCH", namespaceRoot+"/devices/lamp?fieldManager=ann",
		"apiVersion: edgebus.io/v1alpha1\nkind: Device\nspec: {"+requiredSpec+", nodeName: n1}", "Content-Type", "Application/Apply-Patch+YAML; charset=utf-8")
	require.Equal(t, []string{"ann"}, applied.managers())
	require.Equal(t, "Apply", applied.str("metadata.managedFields.0.operation"))
}

func TestProtobuf(t *testing.T) {
	h := newHub(t, withSealer(t))
	const secrets, maps = "/api/v1/namespaces/default/secrets", "/api/v1/namespaces/default/configmaps"
	post := func(path, body string) hubResponse {
		return h.do("POST", path, body, "Content-Type", protobuf.MediaType)
	}

	made := post(secrets, encodeProtobuf(t, "v1", "Secret", packedEntry(2, "password", "\xff\x00"), packedEntry(2, "none", ""), packedEntry(4, "user", "ann"),
		packedBytes(3, []byte("kubernetes.io/tls")), packedFlag(5), packedBytes(99, []byte("from the future"))))
	require.Equal(t, 201, made.code, "%s", made.body)
	require.Equal(t, "hall", made.str("metadata.labels.room"))
	require.Equal(t, jsonObject{"password": "/wA=", "none": "", "user": "YW5u"}, made.at("data"))
	require.Equal(t, "kubernetes.io/tls", made.str("type"))
	require.Equal(t, true, made.at("immutable"))

	made = post(maps, encodeProtobuf(t, "v1", "ConfigMap", packedEntry(2, "a", "text"), packedEntry(3, "b", "\x00")))
	require.Equal(t, 201, made.code, "%s", made.body)
	require.Equal(t, jsonObject{"a": "text"}, made.at("data"))
	require.Equal(t, jsonObject{"b": "AA=="}, made.at("binaryData"))

	for name, body := range map[string]string{
		"empty": "", "no magic": "{}", "cut": encodeProtobuf(t, "v1", "Secret", packedEntry(2, "a", "b"))[:20],
		"another kind": encodeProtobuf(t, "v1", "ConfigMap"), "another type": encodeProtobuf(t, "v1", "Secret", packedFlag(2)),
		"a bad entry": encodeProtobuf(t, "v1", "Secret", packedBytes(2, []byte{0xff})), "bad metadata": encodeProtobuf(t, "v1", "Secret", packedBytes(1, []byte{0xff})),
	} {
		require.Equal(t, 400, post(secrets, body).code, name)
	}
	refused := post(apiRoot+"/nodes", encodeProtobuf(t, "v1", "Node"))
	require.Equal(t, 415, refused.code)
	require.Contains(t, refused.str("message"), "application/json")
	require.Equal(t, 422, post(secrets, encodeProtobuf(t, "v1", "Secret", packedEntry(2, "not a key", "b"))).code, "the rules hold")
}

// packedTime is a time as its message has it.
func packedTime(seconds, nanos uint64) []byte {
	raw := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), seconds)
	return protowire.AppendVarint(protowire.AppendTag(raw, 2, protowire.VarintType), nanos)
}

// A controller made with client-go sends its Events, Leases and deletions in protobuf.
func TestControllersSendProtobuf(t *testing.T) {
	h := newHub(t, withSealer(t))
	send := func(method, path string, body string) hubResponse {
		return h.ok(method, path, body, "Content-Type", protobuf.MediaType)
	}
	number := func(n protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, n, protowire.VarintType), v)
	}
	options := func(uid string) string {
		var preconditions []byte
		if uid != "" {
			preconditions = packedBytes(2, packedBytes(1, []byte(uid)))
		}
		raw, err := (&runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}, Raw: preconditions}).Marshal()
		require.NoError(t, err)
		return "k8s\x00" + string(raw)
	}
	reference := append(packedBytes(1, []byte("Device")), packedBytes(3, []byte("lamp"))...)
	at := packedTime(1_800_000_000, 123_456_789)

	const events = "/api/v1/namespaces/default/events"
	made := send("POST", events, encodeProtobuf(t, "v1", "Event", packedBytes(2, reference), packedBytes(3, []byte("Tried")), packedBytes(4, []byte("it did")),
		packedBytes(5, packedBytes(1, []byte("me"))), packedBytes(6, at), packedBytes(7, at), number(8, 3), packedBytes(9, []byte("Warning")), packedBytes(10, nil)))
	require.Equal(t, jsonObject{"kind": "Device", "name": "lamp"}, made.at("involvedObject"))
	require.Equal(t, "me", made.str("source.component"))
	require.Equal(t, "2027-01-15T08:00:00Z", made.str("lastTimestamp"))
	require.EqualValues(t, 3, made.at("count"))
	send("DELETE", events+"/a", options(""))

	made = send("POST", "/apis/events.k8s.io/v1/namespaces/default/events", encodeProtobuf(t, "events.k8s.io/v1", "Event", packedBytes(2, at),
		packedBytes(3, append(number(1, 7), packedBytes(2, at)...)), packedBytes(4, []byte("me")), packedBytes(5, []byte("me-0")), packedBytes(6, []byte("Try")),
		packedBytes(7, []byte("Tried")), packedBytes(8, reference), packedBytes(10, []byte("it did")), packedBytes(11, []byte("Normal"))))
	require.Equal(t, "2027-01-15T08:00:00.123456Z", made.str("eventTime"))
	require.Equal(t, "lamp", made.str("regarding.name"))
	require.EqualValues(t, 7, made.at("series.count"))
	require.Equal(t, "it did", made.str("note"))

	const leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
	spec := append(packedBytes(1, []byte("me-0")), append(number(2, 15), packedBytes(3, at)...)...)
	made = send("POST", leases, encodeProtobuf(t, "coordination.k8s.io/v1", "Lease", packedBytes(2, append(spec, number(5, 1)...))))
	require.Equal(t, jsonObject{"holderIdentity": "me-0", "leaseDurationSeconds": 15.0, "acquireTime": "2027-01-15T08:00:00.123456Z", "leaseTransitions": 1.0}, made.at("spec"))
	require.Equal(t, 409, h.do("PUT", leases+"/a", `{"metadata":{"name":"a","resourceVersion":"1"},"spec":{"holderIdentity":"me-1"}}`).code, "one of two takes it")
	require.Equal(t, 422, h.do("PATCH", leases+"/a", `{"spec":{"leaseDurationSeconds":0}}`, "Content-Type", strategicPatch).code)

	// The options of a deletion are heeded.
	require.Equal(t, 409, h.do("DELETE", leases+"/a", options("another"), "Content-Type", protobuf.MediaType).code)
	send("DELETE", leases+"/a", options(made.str("metadata.uid")))
	h.refused(400, "BadRequest", "DELETE", leases+"/a", "k8s", "Content-Type", protobuf.MediaType)
	send("DELETE", "/apis/events.k8s.io/v1/namespaces/default/events", options(""))
	require.Empty(t, h.ok("GET", events, "").at("items"))
}

// What is wrong in a map or a list is named with its key or number.
func TestPlacesOfWrongValues(t *testing.T) {
	h := newHub(t, withSealer(t))
	for _, c := range []struct{ path, body, says string }{
		{"/api/v1/namespaces/default/secrets", `{"metadata":{"name":"x"},"stringData":{"user":"a","port":1883}}`, "stringData[port]: must be a string"},
		{"/api/v1/namespaces/default/secrets", `{"metadata":{"name":"x"},"data":{"key":"no base64!"}}`, "data[key]: must be base64"},
		{"/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"x"},"data":{"a":"b","on":true}}`, "data[on]: must be a string"},
		{namespaceRoot + "/devicemodels", `{"metadata":{"name":"x"},"spec":{"properties":[{"name":"a"},{"name":"b"},{"name":"c","minimum":"low"}]}}`, "spec.properties[2].minimum: must be a number"},
		{kubeedgeBeta1 + "/devicemodels", `{"metadata":{"name":"x"},"spec":{"properties":[{"name":"a"},{"name":"c","type":{}}]}}`, "spec.properties[1].type: must be a string"},
	} {
		got := h.do("POST", c.path, c.body)
		require.Contains(t, []int{400, 422}, got.code)
		require.Contains(t, got.str("message"), c.says)
		require.NotContains(t, got.str("message"), "1883", "values may be secret")
	}
}

func FuzzProtobuf(f *testing.F) {
	f.Add([]byte(encodeProtobuf(f, "v1", "Secret", packedEntry(2, "a", "b"), packedFlag(5))), true)
	f.Add([]byte(encodeProtobuf(f, "v1", "Event", packedBytes(10, packedTime(1, 2)), packedBytes(2, packedBytes(3, []byte("lamp"))))), false)
	f.Add([]byte(encodeProtobuf(f, "v1", "ConfigMap", packedEntry(3, "a", "b"))), false)
	f.Fuzz(func(t *testing.T, raw []byte, secret bool) {
		for _, k := range Kinds() {
			if k.Name == resource.KindSecret == secret {
				_, _ = protobuf.Object(raw, k.APIVersion(), k.Name) // it must only not panic
			}
		}
		_, _ = protobuf.DeleteOptions(raw)
		_, _ = protobuf.ReviewSpec(raw)
	})
}
