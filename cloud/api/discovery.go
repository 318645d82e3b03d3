// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"

	"github.com/edgebus/edgebus/broker/daemon/httpserver"
)

// discovery serves the lists of groups and kinds, and the OpenAPI 3 documents.
func (s *server) discovery(mux *http.ServeMux) {
	d := httpserver.Discovery{Version: s.Version, OpenAPI: s.openapi.document}
	for i := range s.Kinds {
		if k := &s.Kinds[i]; k.dialect == nil || !s.OwnOnly {
			d.Kinds = append(d.Kinds, k.described())
		}
	}
	d.Kinds = append(d.Kinds, namespaceKind.described())
	for path, answer := range d.Handlers() {
		mux.Handle("GET "+path, s.handle(func(w http.ResponseWriter, r *http.Request) error {
			answer(w, r)
			return nil
		}))
	}
}

func (k *Kind) described() httpserver.Kind {
	d := httpserver.Kind{
		Group: k.Group, Version: k.Version, Name: k.Name, Plural: k.Plural, Singular: k.Singular, Short: k.Short,
		Categories: k.categories(), Namespaced: k.Namespaced, Verbs: k.verbs(),
	}
	if !k.NoStatus {
		d.StatusVerbs = statusVerbs
	}
	return d
}
