// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"net/http"

	"github.com/edgebus/edgebus/broker/history/requests"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// history serves what a property of a Device was, or of all of them.
func (s *server) history(w http.ResponseWriter, r *http.Request) error {
	d, err := s.device(r, "get")
	if err != nil {
		return err
	}
	m, err := objects.Get[resource.DeviceModel](r.Context(), s.reads, store.Key{Namespace: d.Metadata.Namespace, Name: d.Spec.DeviceModelRef.Name})
	if err != nil {
		return err
	}
	return requests.ServeHTTP(w, r, resource.Bundle{Device: d, Model: *m}, s.Devices.History(d.Spec.NodeName))
}

// deleteHistory deletes what the properties of a Device were up to now, on its node and here: the Device says so, and who keeps it follows.
func (s *server) deleteHistory(w http.ResponseWriter, r *http.Request) error {
	d, err := s.device(r, "update")
	if err != nil {
		return err
	}
	patch, err := json.Marshal(jsonObject{"spec": jsonObject{"history": jsonObject{"notBefore": resource.FormatTime(s.Now())}}})
	if err != nil {
		return err
	}
	path := "/apis/" + resource.APIVersion + "/namespaces/" + d.Metadata.Namespace + "/devices/" + d.Metadata.Name
	return s.object(w, redirectRequest(r, http.MethodPatch, path, patch))
}
