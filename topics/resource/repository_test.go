// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Conditions and Events show a Repository's address to everybody.
func TestARepositorysAddressHoldsNoCredentials(t *testing.T) {
	kinds := map[string]string{"oci:": "oci"}
	for url, fine := range map[string]bool{
		"https://git.example/site.git": true, "ssh://git@git.example/site.git": true, "git@git.example:site.git": true, "oci://registry.example/x": true,
		"https://ghp_secret@git.example/site.git": false, "https://ann:verysecret@git.example/site.git": false, "oci://token@registry.example/x": false,
		"http://token@files.example/": false, "ssh://git:verysecret@git.example/site.git": false, "https://token@git.example:8443/site.git": false,
		"https://git.example/site.git?private_token=verysecret": false, "https://files.example/?sig=verysecret": false, "https://files.example/#verysecret": false,
	} {
		err := Repository{Metadata: Meta{Name: "r"}, Spec: RepositorySpec{URL: url, Type: kinds[url[:4]]}}.Validate()
		if fine {
			require.NoError(t, err, url)
			continue
		}
		require.ErrorContains(t, err, "spec.url: must not hold", url)
		require.NotContains(t, err.Error(), "verysecret", url)
	}
}

// What no hub reads is refused, and not found out by a condition that says that it can't be read.
func TestARepositorysAddressIsOneThatItsTypeIsReadBy(t *testing.T) {
	for _, c := range []struct {
		kind, url string
		fine      bool
	}{
		{"", "https://git.example/x.git", true},
		{"git", "git@git.example:x.git", true},
		{"git", "ssh://git@git.example/x.git", true},
		{"git", "git://git.example/x.git", false},
		{"", "git+ssh://git.example/x.git", false},
		{"git", "file:///etc", false},
		{"git", "oci://registry.example/x", false},
		{"http", "http://files.example/", true},
		{"http", "ssh://git@git.example/x", false},
		{"http", "git@git.example:x", false},
		{"http", "ftp://files.example/", false},
		{"oci", "oci://registry.example/x", true},
		{"oci", "http://registry.example/x", true},
		{"oci", "docker://registry.example/x", false},
	} {
		err := Repository{Metadata: Meta{Name: "r"}, Spec: RepositorySpec{URL: c.url, Type: c.kind}}.Validate()
		if c.fine {
			require.NoError(t, err, c.url)
			continue
		}
		require.ErrorContains(t, err, "spec.url: ", c.url)
	}
}
