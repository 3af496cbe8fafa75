from lamina.cli import main

main()
