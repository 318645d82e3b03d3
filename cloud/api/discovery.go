package api

import (
	"net/http"
	"runtime"
	"slices"
	"strings"
)

var (
	verbs       = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	statusVerbs = []string{"get", "patch", "update"}
)

type dict = map[string]any

// discovery serves what clients read to find out what there is: the lists of
// groups and kinds, in the old form and the aggregated one, and the schemas.
func (s *server) discovery(mux *http.ServeMux) {
	serve := func(path string, plain, aggregated func() any) {
		mux.Handle("GET "+path, s.handle(func(w http.ResponseWriter, r *http.Request) error {
			if media := aggregatedType(r); media != "" && aggregated != nil {
				w.Header().Set("Vary", "Accept")
				writeAs(w, media, aggregated())
				return nil
			}
			writeJSON(w, http.StatusOK, plain())
			return nil
		}))
	}
	groups, paths := []any{}, dict{}
	for _, g := range s.groups() {
		group, version := g.name, g.version
		at := strings.TrimPrefix(g.root(), "/")
		paths[at] = dict{"serverRelativeURL": "/openapi/v3/" + at}
		serve(g.root(), func() any { return s.resources(group, version) }, nil)
		serve("/openapi/v3/"+at, func() any { return s.openapi(group, version) }, nil)
		if group != "" {
			groups = append(groups, g.described())
			serve("/apis/"+group, g.described, nil)
		}
	}
	serve("/api", func() any {
		return dict{"kind": "APIVersions", "versions": []string{"v1"}, "serverAddressByClientCIDRs": []any{}}
	}, func() any { return s.aggregated(true) })
	serve("/apis", func() any { return dict{"kind": "APIGroupList", "apiVersion": "v1", "groups": groups} },
		func() any { return s.aggregated(false) })
	serve("/version", func() any { return s.version() }, nil)
	serve("/openapi/v3", func() any { return dict{"paths": paths} }, nil)
}

// aggregatedType is the media type of the aggregated form, if the client asks for it.
func aggregatedType(r *http.Request) string {
	for item := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		if strings.Contains(item, "as=APIGroupDiscoveryList") && strings.HasPrefix(strings.TrimSpace(item), "application/json") &&
			(strings.Contains(item, "v=v2;") || strings.HasSuffix(item, "v=v2") || strings.Contains(item, "v=v2beta1")) {
			return strings.TrimSpace(item)
		}
	}
	return ""
}

func writeAs(w http.ResponseWriter, media string, v any) {
	writeJSON(contentType{w, media}, http.StatusOK, v)
}

// contentType replaces the Content-Type that is about to be written.
type contentType struct {
	http.ResponseWriter
	media string
}

func (c contentType) WriteHeader(code int) {
	c.Header().Set("Content-Type", c.media)
	c.ResponseWriter.WriteHeader(code)
}

// apiGroup is a group of kinds, with its one version.
type apiGroup struct{ name, version string }

func (g apiGroup) root() string { return (&Kind{Group: g.name, Version: g.version}).root() }

func (g apiGroup) described() any {
	version := dict{"groupVersion": g.name + "/" + g.version, "version": g.version}
	return dict{
		"kind": "APIGroup", "apiVersion": "v1", "name": g.name,
		"versions": []any{version}, "preferredVersion": version,
	}
}

// groups are those of the kinds, in the kinds' order: for a plural that several have,
// kubectl takes the first.
func (s *server) groups() (out []apiGroup) {
	for _, k := range s.Kinds {
		if g := (apiGroup{k.Group, k.Version}); !slices.Contains(out, g) {
			out = append(out, g)
		}
	}
	return out
}

func (s *server) resources(group, version string) any {
	list := []any{}
	for _, k := range s.Kinds {
		if k.Group != group || k.Version != version {
			continue
		}
		list = append(list, dict{
			"name": k.Plural, "singularName": k.Singular, "namespaced": k.Namespaced, "kind": k.Name, "verbs": verbs, "shortNames": k.Short,
		})
		if !k.NoStatus {
			list = append(list, dict{"name": k.Plural + "/status", "singularName": "", "namespaced": k.Namespaced, "kind": k.Name, "verbs": statusVerbs})
		}
	}
	version = (&Kind{Group: group, Version: version}).apiVersion()
	return dict{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": list}
}

// aggregated is all that discovery has to say, of the core group or of the others.
func (s *server) aggregated(core bool) any {
	items := []any{}
	for _, g := range s.groups() {
		if (g.name == "") != core {
			continue
		}
		list := []any{}
		for i := range s.Kinds {
			if k := &s.Kinds[i]; k.Group == g.name && k.Version == g.version {
				list = append(list, k.discovered())
			}
		}
		items = append(items, dict{
			"metadata": dict{"name": g.name, "creationTimestamp": nil},
			"versions": []any{dict{"version": g.version, "resources": list, "freshness": "Current"}},
		})
	}
	return dict{"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": dict{}, "items": items}
}

func (k *Kind) discovered() any {
	scope := "Cluster"
	if k.Namespaced {
		scope = "Namespaced"
	}
	d := dict{
		"resource": k.Plural, "responseKind": k.gvk(), "scope": scope, "singularResource": k.Singular,
		"verbs": verbs, "shortNames": k.Short,
	}
	if !k.NoStatus {
		d["subresources"] = []any{dict{"subresource": "status", "responseKind": k.gvk(), "verbs": statusVerbs}}
	}
	return d
}

func (s *server) version() any {
	// kubectl compares itself with the Kubernetes that this speaks like.
	return dict{
		"major": "1", "minor": "32", "gitVersion": "v1.32.0+edgebus-" + strings.TrimPrefix(s.Version, "v"),
		"goVersion": runtime.Version(), "compiler": runtime.Compiler, "platform": runtime.GOOS + "/" + runtime.GOARCH,
	}
}
