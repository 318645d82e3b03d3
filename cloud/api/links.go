package api

import (
	"math"
	"net/http"
	"slices"
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
	report := s.linksFor(accessIn(r.Context()), r.PathValue("node"), most)
	if report.Links == nil {
		report.Links = []resource.Link{}
	}
	writeJSON(w, http.StatusOK, report)
	return nil
}

// linksFor leaves out the links of nodes that are none of the user's, and how the hub's clients fare, of whom one is named.
func (s *server) linksFor(a access, node string, most int) resource.LinkReport {
	if a.all {
		return s.Links(node, most)
	}
	report := s.Links(node, math.MaxInt)
	report.FullestQueue, report.FullestOf, report.Missed, report.Refused = 0, "", 0, nil
	report.Links = slices.DeleteFunc(report.Links, func(l resource.Link) bool { return !a.has(l.Node) })
	if more := len(report.Links) - most; more > 0 {
		report.Links, report.More = report.Links[:most], more
	}
	return report
}
