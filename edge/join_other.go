//go:build !unix

package edge

func chownForService(string, string) error { return nil }
