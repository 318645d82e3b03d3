package resource

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Conditions and Events show a Repository's address to everybody.
func TestARepositorysAddressHoldsNoCredentials(t *testing.T) {
	for url, fine := range map[string]bool{
		"https://git.example/site.git": true, "ssh://git@git.example/site.git": true, "git@git.example:site.git": true, "oci://registry.example/x": true,
		"https://ghp_secret@git.example/site.git": false, "https://ann:verysecret@git.example/site.git": false, "oci://token@registry.example/x": false,
		"http://token@files.example/": false, "ssh://git:verysecret@git.example/site.git": false, "https://token@git.example:8443/site.git": false,
	} {
		err := Repository{Metadata: Meta{Name: "r"}, Spec: RepositorySpec{URL: url}}.Validate()
		if fine {
			require.NoError(t, err, url)
			continue
		}
		require.ErrorContains(t, err, "spec.url: must not hold", url)
		require.NotContains(t, err.Error(), "secret@", url)
	}
}
