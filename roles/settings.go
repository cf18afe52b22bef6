package roles

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	"sigs.k8s.io/yaml"
)

// loadSettings fills the flags of cmd that the command line left out from the
// environment, then from the file of --config.
func loadSettings(cmd *cobra.Command) error {
	v := viper.New()
	v.SetEnvPrefix("INFERENCECACHE")
	v.SetEnvKeyReplacer(strings.NewReplacer("-", "_"))
	v.AutomaticEnv()
	file, _ := cmd.Flags().GetString("config")
	if file == "" {
		file = v.GetString("config")
	}
	var errs []error
	if file != "" {
		v.SetConfigFile(file)
		v.SetConfigType("yaml")
		if err := v.ReadInConfig(); err != nil {
			return fmt.Errorf("read settings: %w", err)
		}
		errs = append(errs, unknownKeys(v, cmd.Flags(), file))
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Changed || f.Name == "config" || f.Name == "help" || !v.IsSet(f.Name) {
			return
		}
		if err := setFlag(f, v); err != nil {
			errs = append(errs, fmt.Errorf("setting %s: %w", f.Name, err))
		}
	})
	return errors.Join(errs...)
}

func unknownKeys(v *viper.Viper, flags *pflag.FlagSet, file string) error {
	var unknown []string
	for _, key := range v.AllKeys() {
		if v.InConfig(key) && flags.Lookup(key) == nil {
			unknown = append(unknown, key)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	slices.Sort(unknown)
	return fmt.Errorf("%s: no such setting here: %s", file, strings.Join(unknown, ", "))
}

func setFlag(f *pflag.Flag, v *viper.Viper) error {
	f.Changed = true
	list, ok := f.Value.(pflag.SliceValue)
	if !ok {
		return f.Value.Set(v.GetString(f.Name))
	}
	if text, ok := v.Get(f.Name).(string); ok { // from the environment
		return list.Replace(strings.Split(text, ","))
	}
	return list.Replace(v.GetStringSlice(f.Name))
}

// newConfig is `inferencecache config`: what `run` would run with.
func newConfig() *cobra.Command {
	var diff bool
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print the settings that run would use, as YAML for --config",
		Args:  cobra.NoArgs,
	}
	bindRun(cmd.Flags())
	cmd.Flags().BoolVar(&diff, "diff", false, "only those that differ from their defaults")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		settings := map[string]any{}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Name == "config" || f.Name == "help" || f.Name == "diff" || diff && f.Value.String() == f.DefValue {
				return
			}
			settings[f.Name] = f.Value.String()
			if list, ok := f.Value.(pflag.SliceValue); ok {
				settings[f.Name] = list.GetSlice()
			}
		})
		if len(settings) == 0 {
			return nil
		}
		text, err := yaml.Marshal(settings)
		if err != nil {
			return err
		}
		_, err = cmd.OutOrStdout().Write(text)
		return err
	}
	return cmd
}
