// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/edgebus/edgebus/topics/resource"
)

// NoValue stands in a table of kubectl where an object has no value, as in Kubernetes' own tables.
const NoValue = "<none>"

// ReadBody decodes the JSON body of a request. A field that into doesn't have is an error.
func ReadBody(r *http.Request, into any) error {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return resource.Errorf(resource.Invalid, "", "the body is not as it should be: %v", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return resource.Errorf(resource.Invalid, "", "the body has more than one JSON object: send each in a request of its own")
	}
	return nil
}

// SendJSON answers with JSON.
func SendJSON(w http.ResponseWriter, v any) error {
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(v)
}

// SendJSONOr answers with JSON, unless there is an error: it is returned.
func SendJSONOr(w http.ResponseWriter, v any, err error) error {
	if err != nil {
		return err
	}
	return SendJSON(w, v)
}
