// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/topics/resource"
)

const (
	// defaultWatch is how long a watch lasts if the client doesn't say.
	defaultWatch = 30 * time.Minute
	// maxWatch is how long a watch lasts at most.
	maxWatch = 24 * time.Hour
)

// IsQueryTrue reports whether a parameter of a query is true, as Kubernetes reads it: "0" and "false" are not, and any other
// text is, such as "True", as Python writes it, and none at all.
func IsQueryTrue(query url.Values, name string) bool {
	values := query[name]
	return len(values) > 0 && values[0] != "0" && !strings.EqualFold(values[0], "false")
}

// ParseOldWatchPath reads what stands behind /watch/ in Kubernetes' older paths of watches: the collection that is meant, and into the query
// that it is a watch, and of which object, if there is a name. There is at least one part.
func ParseOldWatchPath(query url.Values, parts []string) (collection []string) {
	query.Set("watch", "true")
	plural := 0
	if parts[0] == "namespaces" && len(parts) > 2 {
		plural = 2
	}
	if len(parts) == plural+2 {
		selector := "metadata.name=" + parts[plural+1]
		if more := query.Get("fieldSelector"); more != "" {
			selector += "," + more
		}
		query.Set("fieldSelector", selector)
		return parts[:plural+1]
	}
	return parts
}

// WatchTimeout is how long a watch may last by its query.
func WatchTimeout(query url.Values) (time.Duration, error) {
	text := query.Get("timeoutSeconds")
	if text == "" {
		return defaultWatch, nil
	}
	n, err := strconv.ParseUint(text, 10, 32)
	switch {
	case err != nil:
		return 0, resource.Errorf(resource.Invalid, "timeoutSeconds", "%.20q is not a number of seconds", text)
	case n == 0:
		return defaultWatch, nil
	}
	return min(time.Duration(n)*time.Second, maxWatch), nil
}
