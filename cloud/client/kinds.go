package client

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/topics/resource"
)

// Kind is a kind of object that the hub serves.
type Kind struct {
	Group, Version         string
	Name, Plural, Singular string
	Short                  []string
	Namespaced             bool
	Verbs                  []string
	Categories             []string // under which several kinds are asked for at once: all
}

// APIVersion is what objects of the kind say of themselves.
func (k Kind) APIVersion() string {
	if k.Group == "" {
		return k.Version
	}
	return k.Group + "/" + k.Version
}

// Qualified is the kind's name with its group: devices.edgebus.io.
func (k Kind) Qualified() string {
	if k.Group == "" {
		return k.Plural
	}
	return k.Plural + "." + k.Group
}

// Can is whether the hub does something with objects of the kind: list, watch, create, …
func (k Kind) Can(verb string) bool { return slices.Contains(k.Verbs, verb) }

// called is whether people call the kind so.
func (k Kind) called(name string) bool {
	names := append([]string{k.Plural, k.Singular, strings.ToLower(k.Name), k.Qualified(), k.Plural + "." + k.Version + "." + k.Group}, k.Short...)
	return slices.Contains(names, strings.ToLower(name))
}

// path is where the hub serves the kind: all of it, a namespace's, or one object.
func (k Kind) path(namespace, name string) string {
	path := "/apis/" + k.APIVersion()
	if k.Group == "" {
		path = "/api/" + k.Version
	}
	if k.Namespaced && namespace != "" {
		path += "/namespaces/" + url.PathEscape(namespace)
	}
	path += "/" + k.Plural
	if name != "" {
		path += "/" + url.PathEscape(name)
	}
	return path
}

// discovered is the aggregated form of discovery.
type discovered struct {
	Items []struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
		Versions []struct {
			Version   string `json:"version"`
			Resources []struct {
				Resource     string                `json:"resource"`
				ResponseKind struct{ Kind string } `json:"responseKind"`
				Scope        string                `json:"scope"`
				Singular     string                `json:"singularResource"`
				Verbs        []string              `json:"verbs"`
				Short        []string              `json:"shortNames"`
				Categories   []string              `json:"categories"`
			} `json:"resources"`
		} `json:"versions"`
	} `json:"items"`
}

const discoveryForm = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// Kinds are what the hub serves, the canonical group before others' forms of the same objects. It is
// asked once.
func (c *Client) Kinds(ctx context.Context) ([]Kind, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kinds != nil {
		return c.kinds, nil
	}
	var all []Kind
	for _, path := range []string{"/apis", "/api"} {
		text, err := c.ask(ctx, call{method: http.MethodGet, path: path, accept: discoveryForm})
		if errors.Is(err, resource.NotFound) {
			return nil, c.notAHub()
		}
		if err != nil {
			return nil, err
		}
		var d discovered
		if err := c.decode(text, &d); err != nil {
			return nil, err
		}
		all = append(all, d.kinds()...)
	}
	if len(all) == 0 {
		return nil, c.notAHub()
	}
	rank := map[string]int{resource.Group: -2, "": -1}
	slices.SortStableFunc(all, func(a, b Kind) int { return rank[a.Group] - rank[b.Group] })
	c.kinds = all
	return all, nil
}

func (d discovered) kinds() (all []Kind) {
	for _, group := range d.Items {
		for _, v := range group.Versions {
			for _, r := range v.Resources {
				all = append(all, Kind{
					Group: group.Metadata.Name, Version: v.Version, Name: r.ResponseKind.Kind, Plural: r.Resource,
					Singular: r.Singular, Short: r.Short, Namespaced: r.Scope == "Namespaced", Verbs: r.Verbs, Categories: r.Categories,
				})
			}
		}
	}
	return all
}

// Kind finds what people call a kind: device, devices, dev, Device or devices.edgebus.io.
func (c *Client) Kind(ctx context.Context, name string) (Kind, error) {
	return c.find(ctx, name, func(k Kind) bool { return k.called(name) })
}

// KindOf finds the kind that an object says it is of.
func (c *Client) KindOf(ctx context.Context, o resource.TypeMeta) (Kind, error) {
	return c.find(ctx, o.Kind+" of "+o.APIVersion, func(k Kind) bool { return k.Name == o.Kind && k.APIVersion() == o.APIVersion })
}

func (c *Client) find(ctx context.Context, name string, is func(Kind) bool) (Kind, error) {
	all, err := c.Kinds(ctx)
	if err != nil {
		return Kind{}, err
	}
	if i := slices.IndexFunc(all, is); i >= 0 {
		return all[i], nil
	}
	var known []string
	for _, k := range Canonical(all) {
		known = append(known, k.Plural)
	}
	return Kind{}, resource.Errorf(resource.NotFound, "", "the hub knows no kind %s; it knows %s", name, strings.Join(known, ", "))
}

// Canonical leaves one form of every kind: the first, which is the hub's own.
func Canonical(all []Kind) []Kind {
	seen := map[string]bool{}
	var own []Kind
	for _, k := range all {
		if !seen[k.Name] {
			own = append(own, k)
		}
		seen[k.Name] = true
	}
	return own
}
