package roles

import (
	"io"

	"github.com/spf13/cobra"

	"inferencecache.io/inferencecache/deploy"
)

// newManifests is `inferencecache manifests`.
func newManifests() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "manifests",
		Short: "Print what a cluster needs, for kubectl apply -f -",
		Args:  cobra.NoArgs,
	}
	namespace := cmd.Flags().String("namespace", deploy.DefaultNamespace, "namespace to install into; the manifest makes it")
	image := cmd.Flags().String("image", "inferencecache:"+Version, "image of this program, as the cluster can pull it")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		text, err := deploy.Manifest(*namespace, *image)
		if err != nil {
			return usage(err)
		}
		_, err = io.WriteString(cmd.OutOrStdout(), text)
		return err
	}
	return cmd
}
