package api

import (
	"net/http"
	"strconv"

	"github.com/edgebus/edgebus/topics/resource"
)

const usualLinks = 100 // in an answer

// links serves /links and /links/{node}: how the links are at this moment. It is no
// resource: nothing of it is stored, or can be watched.
func (s *server) links(w http.ResponseWriter, r *http.Request) error {
	most := usualLinks
	if text := r.URL.Query().Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return badRequest("", "limit %.40q is no number above 0", text)
		}
		most = n
	}
	report := s.Links(r.PathValue("node"), most)
	if report.Links == nil {
		report.Links = []resource.Link{}
	}
	writeJSON(w, http.StatusOK, report)
	return nil
}
