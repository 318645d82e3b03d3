// SPDX-License-Identifier: Apache-2.0

package api

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

const asPartial = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// Who asks for metadata only gets these, in whatever group's form, and nothing else of the object.
func TestMetadataOnly(t *testing.T) {
	h := newHub(t, withSealer(t))
	h.ok("POST", namespaceRoot+"/devicemodels", modelJSON)
	h.ok("POST", namespaceRoot+"/devices", lampJSON(`,"labels":{"room":"hall"}`, ""))
	h.ok("POST", apiRoot+"/nodes", `{"metadata":{"name":"host"}}`)
	h.ok("POST", "/api/v1/namespaces/default/secrets", `{"metadata":{"name":"s","annotations":{"a":"b"}},"stringData":{"password":"hunter2"}}`)
	for _, at := range []string{namespaceRoot + "/devices/lamp", flightctlDevices + "/host", kubeedgeBeta1 + "/devices/lamp", "/api/v1/namespaces/default/secrets/s"} {
		whole := h.ok("GET", at, "")
		got := h.ok("GET", at, "", "Accept", asPartial)
		require.Equal(t, jsonObject{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": whole.at("metadata")}, got.tree)
	}
	list := h.ok("GET", namespaceRoot+"/devices", "", "Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
	require.Equal(t, "PartialObjectMetadataList", list.str("kind"))
	require.Equal(t, "meta.k8s.io/v1", list.str("apiVersion"))
	require.Equal(t, h.ok("GET", namespaceRoot+"/devices", "").at("metadata"), list.at("metadata"))
	require.Equal(t, h.ok("GET", namespaceRoot+"/devices/lamp", "", "Accept", asPartial).tree, list.at("items.0"))
	for _, none := range []string{
		"application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
		"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v9", "application/json;as=Other;g=meta.k8s.io;v=v1",
	} {
		h.refused(406, "NotAcceptable", "GET", namespaceRoot+"/devices", "", "Accept", none)
	}
}

// client-go's metadata client, which garbage collectors and caches use, reads, follows and labels.
func TestTheMetadataClient(t *testing.T) {
	h := newHub(t)
	h.ok("POST", namespaceRoot+"/devicemodels", modelJSON)
	h.ok("POST", namespaceRoot+"/devices", lampJSON(`,"labels":{"room":"hall"}`, ""))
	c, err := metadata.NewForConfig(&rest.Config{Host: h.url, QPS: -1})
	require.NoError(t, err)
	devices := c.Resource(schema.GroupVersionResource{Group: "edgebus.io", Version: "v1alpha1", Resource: "devices"}).Namespace("default")
	list, err := devices.List(t.Context(), metav1.ListOptions{LabelSelector: "room=hall"})
	require.NoError(t, err)
	require.Len(t, list.Items, 1)
	one, err := devices.Get(t.Context(), "lamp", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, list.Items[0].ObjectMeta, one.ObjectMeta)

	initial := true
	w, err := devices.Watch(t.Context(), metav1.ListOptions{
		AllowWatchBookmarks: true, SendInitialEvents: &initial, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	require.NoError(t, err)
	defer w.Stop()
	next := func(kind watch.EventType) *metav1.PartialObjectMetadata {
		e, open := <-w.ResultChan()
		require.True(t, open)
		require.Equal(t, kind, e.Type, "%v", e.Object)
		return e.Object.(*metav1.PartialObjectMetadata)
	}
	require.Equal(t, one.ObjectMeta, next(watch.Added).ObjectMeta)
	require.Equal(t, "true", next(watch.Bookmark).Annotations[metav1.InitialEventsAnnotationKey])
	patched, err := devices.Patch(t.Context(), "lamp", types.MergePatchType, []byte(`{"metadata":{"labels":{"room":"attic"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.Equal(t, "attic", patched.Labels["room"])
	require.Equal(t, patched.ObjectMeta, next(watch.Modified).ObjectMeta)
	require.NoError(t, devices.Delete(t.Context(), "lamp", metav1.DeleteOptions{}))
	require.Equal(t, "lamp", next(watch.Deleted).Name)
}
