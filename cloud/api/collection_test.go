package api

import (
	"encoding/json"
	"testing"

	openapi2 "github.com/google/gnostic-models/openapiv2"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
)

func TestDeleteCollection(t *testing.T) {
	h := newHub(t)
	for _, name := range []string{"a", "b", "c"} {
		h.ok("POST", apiRoot+"/nodes", `{"metadata":{"name":"`+name+`","labels":{"is":"`+name+`"}}}`)
	}
	h.ok("POST", apiRoot+"/nodes", `{"metadata":{"name":"d","finalizers":["x/y"]}}`)
	require.Len(t, h.ok("DELETE", apiRoot+"/nodes?dryRun=All", "").at("items"), 4)
	require.Len(t, h.ok("DELETE", apiRoot+"/nodes?labelSelector=is+in+(a,b)", "").at("items"), 2)
	require.Equal(t, []string{"c", "d"}, h.ok("GET", apiRoot+"/nodes", "").names())
	rest := h.ok("DELETE", apiRoot+"/nodes", "")
	require.Len(t, rest.at("items"), 2)
	left := h.ok("GET", apiRoot+"/nodes", "")
	require.Equal(t, []string{"d"}, left.names())
	require.NotEmpty(t, left.str("items.0.metadata.deletionTimestamp"), "its finalizer holds it")
}

func TestAccessReview(t *testing.T) {
	h := newHub(t)
	r := h.ok("POST", authorizationRoot+"/selfsubjectaccessreviews", `{"spec":{"resourceAttributes":{"verb":"create","group":"edgebus.io","resource":"devices"}}}`)
	require.Equal(t, true, r.at("status.allowed"))
	require.Equal(t, "devices", r.str("spec.resourceAttributes.resource"))
	h.refused(400, "BadRequest", "POST", authorizationRoot+"/selfsubjectaccessreviews", `[]`)
}

func TestOpenAPI2(t *testing.T) {
	h := newHub(t)
	plain := h.ok("GET", "/openapi/v2", "")
	require.Contains(t, plain.at("definitions"), "io.edgebus.v1alpha1.Device")
	raw := h.ok("GET", "/openapi/v2", "", "Accept", openapi2Type)
	require.Equal(t, openapi2Type, raw.header.Get("Content-Type"))
	doc := new(openapi2.Document)
	require.NoError(t, proto.Unmarshal(raw.body, doc))
	require.GreaterOrEqual(t, len(doc.GetDefinitions().GetAdditionalProperties()), len(Kinds())+1)
	require.True(t, json.Valid(plain.body))
}
