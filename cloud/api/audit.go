// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"
	"strconv"
	"strings"
)

// mostAudit bounds the entries of an answer.
const mostAudit = 1000

// auditLog serves the newest entries of the audit log: /audit?search=words&limit=. It names everybody's users, addresses and topics, so it is for operators
// of all nodes.
func (s *server) auditLog(w http.ResponseWriter, r *http.Request) error {
	if id := accessIn(r.Context()).id; !id.AllNodes() {
		return statusErrorf(http.StatusForbidden, "Forbidden", "the audit log is for operators of all nodes")
	}
	if s.Page.Audit == nil {
		return statusErrorf(http.StatusNotFound, "NotFound", "this hub has no audit log (audit.file)")
	}
	limit := 200
	if text := r.URL.Query().Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > mostAudit {
			return badRequest("limit", "%q is no number from 1 to %d", text, mostAudit)
		}
		limit = n
	}
	list, err := s.Page.Audit(limit, strings.Fields(r.URL.Query().Get("search")))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, map[string]any{"items": list})
	return nil
}
