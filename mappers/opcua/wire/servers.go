// SPDX-License-Identifier: Apache-2.0

package wire

import "context"

// ApplicationKind is what an application is.
type ApplicationKind uint32

// The kinds of applications.
const (
	KindServer ApplicationKind = iota
	KindClient
	KindClientAndServer
	KindDiscoveryServer
)

// Application is what a server says of one that it knows, itself for the most part.
type Application struct {
	URI, Product, Name string
	Kind               ApplicationKind
	URLs               []string
}

// FindServers asks a server or discovery server which servers it knows, without security, as every server lets be asked.
func FindServers(ctx context.Context, address string) ([]Application, error) {
	r, err := askUnsecured(ctx, address, idFindRequest, idFindResponse)
	if err != nil {
		return nil, err
	}
	list := readList(r, 20, r.application)
	return list, r.err
}

func (r *reader) application() (a Application) {
	a.URI, a.Product = r.string(), r.string()
	a.Name = r.localizedText()
	a.Kind = ApplicationKind(r.uint32())
	r.bytes()
	r.bytes()
	a.URLs = readList(r, 4, r.string)
	return a
}

// BuildInfo is what a server says that it is.
type BuildInfo struct{ Manufacturer, Product, Version, Build string }

// BuildInfo asks the server what it is. What it doesn't say is empty.
func (s *Session) BuildInfo(ctx context.Context) (b BuildInfo, err error) {
	const product, manufacturer, version, build = 2261, 2263, 2264, 2265
	fields := []struct {
		number uint32
		to     *string
	}{{product, &b.Product}, {manufacturer, &b.Manufacturer}, {version, &b.Version}, {build, &b.Build}}
	var requests []ReadRequest
	for _, f := range fields {
		requests = append(requests, ReadRequest{Node: NumericID(0, f.number), Attribute: AttributeValue})
	}
	values, err := s.Read(ctx, requests)
	if err != nil {
		return b, err
	}
	for i, f := range fields {
		*f.to, _ = singleOf[string](values[i].Value)
	}
	return b, nil
}
